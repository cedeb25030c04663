"""Runs a program with PyTorch's own CUDA host code and writes what it asked the caching allocator for.

    python real.py operators|gpt|llama OUT.json      # in the environment that fake_cuda.preload gives

Output: {name: [[+1 or -1, bytes], ...]} in the order of the calls; or an error as text.
"""

from __future__ import annotations

import gc
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def record(call: Any) -> list[tuple[int, int]]:
    """Requests (+) and frees (-) of one call, in bytes as requested."""
    gc.collect()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, clear_history=True)
    result = call()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    del result
    signs = {"alloc": 1, "free_completed": -1}
    return [(signs[e["action"]], e["size"]) for e in trace if e["action"] in signs]


def llama() -> None:
    """Two steps of the bundled FSDP2 example, as rank 0 of 8 whose collectives do nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    initialise = dist.init_process_group
    dist.init_process_group = lambda *_, **__: initialise(  # type: ignore[assignment]
        "fake", rank=0, world_size=8, store=FakeStore()
    )
    sys.argv = ["llama_fsdp2.py", "--steps", "2"]
    runpy.run_path(str(EXAMPLES / "llama_fsdp2.py"), run_name="__main__")


def main() -> None:
    which, target = sys.argv[1:]
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.cuda.init()
    out: dict[str, Any] = {}
    if which == "gpt":
        from host_code import gpt

        out["gpt"] = record(gpt.train)
    elif which == "llama":
        out["llama"] = record(llama)
    else:
        from host_code.operators import CASES

        warm = torch.empty(8, 8, device="cuda", requires_grad=True)
        (
            warm @ warm
        ).sum().backward()  # workspaces of cuBLAS are made here and not in the first case
        del warm
        for name, make in CASES.items():
            try:
                out[name] = record(make())
            except RuntimeError as error:
                out[name] = str(error)
    Path(target).write_text(json.dumps(out))


if __name__ == "__main__":
    main()
