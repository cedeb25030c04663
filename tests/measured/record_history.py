"""Dumps a memory snapshot of the real CUDACachingAllocator after a random run, with its counters after every call.

    python record_history.py OUT SEED PROFILE

Runs over the fake CUDA of tests/oracle, so the allocator, its history and the snapshot are PyTorch's own. Writes OUT.pickle
and OUT.json: `[[entries, requested, allocated, active, reserved], …]`, the counters when the history had that many
entries. The history is switched on after a while, so that it begins with memory in use; `from_start` begins with none.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))

from fake_cuda.build import CannotBuildError, build
from fake_cuda.preload import FakeDevices, Preload, start_again

MIB = 1 << 20
PROFILES = {
    "from_start": "",
    "fixed": "",
    "expandable": "expandable_segments:True",
    "split": "max_split_size_mb:32",
    "roundup": "roundup_power2_divisions:8",
    "streams": "",
    "pools": "",
    "out_of_memory": "",
}


def main() -> None:
    """Runs the profile."""
    out, seed, profile = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    capacity = 400 * MIB if profile == "out_of_memory" else 8192 * MIB
    events = "manual" if profile == "streams" else "auto"
    variables = FakeDevices(capacity=capacity, events=events).environment()
    try:
        start_again(Preload(), {**variables, "PYTORCH_CUDA_ALLOC_CONF": PROFILES[profile]})
    except CannotBuildError as problem:
        sys.exit(f"cannot build the fake CUDA: {problem}")
    record(out, random.Random(seed), profile)


def record(out: str, choose: random.Random, profile: str) -> None:
    """The run itself."""
    import torch

    shim = ctypes.CDLL(str(build().runtime))
    shim.fakecuda_complete_stream.argtypes = [ctypes.c_uint64]
    side = torch.cuda.Stream()
    pool = torch.cuda.MemPool() if profile == "pools" else None
    live: list[torch.Tensor] = []
    counters: list[list[int]] = []
    recording = False

    def size() -> int:
        kind = choose.random()
        if kind < 0.4:
            return choose.randint(1, MIB)
        if kind < 0.8:
            return choose.randint(MIB, 12 * MIB)
        return choose.randint(10 * MIB, 60 * MIB)

    def start() -> None:
        torch.cuda.memory._record_memory_history(max_entries=1 << 30, stacks="python")

    if profile == "from_start":
        start()
        recording = True
    for step in range(400):
        if step == 120 and not recording:
            start()
            recording = True
        action = choose.random()
        try:
            if action < 0.52 or not live:
                if pool is not None and choose.random() < 0.3:
                    with torch.cuda.use_mem_pool(pool):
                        live.append(torch.empty(size(), dtype=torch.uint8, device="cuda"))
                elif profile == "streams" and choose.random() < 0.3:
                    with torch.cuda.stream(side):
                        live.append(torch.empty(size(), dtype=torch.uint8, device="cuda"))
                else:
                    live.append(torch.empty(size(), dtype=torch.uint8, device="cuda"))
            elif action < 0.95:
                tensor = live.pop(choose.randrange(len(live)))
                if profile == "streams" and choose.random() < 0.4:
                    tensor.record_stream(side)
                del tensor
            elif action < 0.98 and profile == "streams":
                shim.fakecuda_complete_stream(side.cuda_stream)
            else:
                torch.cuda.empty_cache()
        except torch.OutOfMemoryError:
            del live[: len(live) // 2]
        if recording:
            entries = len(torch.cuda.memory._snapshot()["device_traces"][0])
            stats = torch.cuda.memory_stats()
            kinds = ("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes")
            counters.append([entries, *(stats[f"{kind}.all.current"] for kind in kinds)])
    torch.cuda.memory._dump_snapshot(f"{out}.pickle")
    Path(f"{out}.json").write_text(json.dumps(counters), encoding="utf-8")
    # Tear-down under the fake is of no interest, and slow.
    sys.stdout.flush()
    import os

    os._exit(0)


if __name__ == "__main__":
    main()
