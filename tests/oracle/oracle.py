"""Runs an allocator trace on the real PyTorch CUDACachingAllocator, over the fake CUDA, and writes what it did.

    python oracle.py TRACE.jsonl [-o OUT.jsonl] [--layout-every N] [--env]
    python oracle.py --batch OUTDIR TRACE.jsonl...      one torch import, one forked child for each trace

A trace is JSON lines, the first a `config`. One JSON line comes out for each: where the block is, what was raised, the
counters, the allocator's own trace entries of this step, and the segments with their blocks; in the last line every counter.

    config              capacity, devices, ctx, conf, fraction, events (auto | manual), free_syncs
    alloc               id, size, stream, pool?, dev?
    free                id (an id whose allocation ran out of memory: "noop")
    record_stream       id, stream
    complete            stream: what was recorded on it so far is complete
    sync, sync_all      cudaStreamSynchronize, cudaDeviceSynchronize
    empty_cache
    set_conf            conf
    set_fraction        fraction, dev?
    set_external        bytes in use on the device by others, dev?
    pool_new, pool_del  pool; no_split, use_on_oom: a torch.cuda.MemPool
    reset_peak, reset_accumulated
    capture_begin       graph, stream, pool: the graph whose pool is shared?
    capture_node        stream: a kernel is launched on it
    capture_wait        stream waits for what is queued on stream `on`
    capture_end, graph_reset    graph

Stream 0 is the null stream; stream k is an external stream whose cudaStream_t value is k * 0x1000.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from fake_cuda.build import CannotBuildError, build
from fake_cuda.preload import FakeDevices, Preload, start_again

Json = dict[str, Any]

STREAM_STRIDE = 0x1000
BLOCK_LETTERS = {
    "active_allocated": "A",
    "active_awaiting_free": "W",
    "active_pending_free": "W",
    "inactive": "I",
}
MOST_HISTORY_ENTRIES = 1 << 30


def fake_devices(config: Json) -> FakeDevices:
    """The devices that a trace's first line asks for."""
    return FakeDevices(
        capacity=config["capacity"],
        devices=config.get("devices", 1),
        context=config.get("ctx", 0),
        events=config.get("events", "auto"),
        free_synchronizes=bool(config.get("free_syncs", 0)),
    )


class Shim:
    """The control functions of the fake CUDA in this process."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.fakecuda_complete_stream.argtypes = [ctypes.c_uint64]
        self._library.fakecuda_capture_add_node.argtypes = [ctypes.c_uint64]
        self._library.fakecuda_set_external.argtypes = [ctypes.c_int, ctypes.c_uint64]
        self._library.fakecuda_used.argtypes = [ctypes.c_int]
        self._library.fakecuda_used.restype = ctypes.c_uint64

    def complete(self, stream: int) -> None:
        """The GPU has come to the end of what is queued on the stream."""
        self._library.fakecuda_complete_stream(stream)

    def add_node(self, stream: int) -> None:
        """A kernel is launched on a stream under capture."""
        self._library.fakecuda_capture_add_node(stream)

    def set_external(self, device: int, size: int) -> None:
        """Other processes use `size` bytes of the device."""
        self._library.fakecuda_set_external(device, size)

    def used(self, device: int) -> int:
        """Bytes of the device that this process holds."""
        return int(self._library.fakecuda_used(device))


@dataclass
class Capture:
    """A graph, and while it is captured the stream that was current before."""

    graph: Any
    outer_stream: Any


@dataclass
class Oracle:
    """The real allocator of this process, driven step by step."""

    config: Json
    torch: ModuleType
    shim: Shim
    tensors: dict[Any, Any] = field(default_factory=dict)
    pools: dict[str, Any] = field(default_factory=dict)
    captures: dict[str, Capture] = field(default_factory=dict)
    streams: dict[tuple[int, int], Any] = field(default_factory=dict)
    device_count: int = 0

    def start(self, conf_from_environment: bool) -> None:
        """Starts CUDA with the trace's settings."""
        conf = self.config.get("conf") or ""
        if conf and not conf_from_environment:
            self.torch._C._accelerator_setAllocatorSettings(conf)
        self.torch.cuda.init()
        self.device_count = self.torch.cuda.device_count()
        if self.config.get("fraction") is not None:
            self.torch.cuda.set_per_process_memory_fraction(self.config["fraction"], 0)
        self._start_history()

    def step(self, op: Json) -> Json:
        """Does one step. Returns what it gave or raised."""
        handler: Callable[[Json], Json | None] = getattr(self, f"_{op['op']}")
        return handler(op) or {}

    # One method for each op.

    def _alloc(self, op: Json) -> Json:
        torch = self.torch
        device = op.get("dev", 0)
        outer = torch.cuda.current_stream(device)
        torch.cuda.set_stream(self._stream(op.get("stream", 0), device))
        pool = op.get("pool")
        try:
            if pool is not None:
                torch._C._cuda_beginAllocateCurrentThreadToPool(device, self.pools[pool].id)
            try:
                tensor = torch.empty(op["size"], dtype=torch.uint8, device=f"cuda:{device}")
            finally:
                if pool is not None:
                    torch._C._cuda_endAllocateToPool(device, self.pools[pool].id)
                    torch._C._cuda_releasePool(device, self.pools[pool].id)
        except torch.OutOfMemoryError as error:
            return {"oom": True, "msg": str(error)}
        finally:
            torch.cuda.set_stream(outer)
        self.tensors[op["id"]] = tensor
        return {"addr": tensor.data_ptr()}

    def _free(self, op: Json) -> Json | None:
        if op["id"] not in self.tensors:
            return {"noop": True}
        del self.tensors[op["id"]]
        return None

    def _record_stream(self, op: Json) -> Json | None:
        tensor = self.tensors.get(op["id"])
        if tensor is None:
            return {"noop": True}
        tensor.record_stream(self._stream(op["stream"], tensor.device.index))
        return None

    def _complete(self, op: Json) -> None:
        self.shim.complete(op["stream"] * STREAM_STRIDE)

    def _sync(self, op: Json) -> None:
        self._stream(op["stream"], op.get("dev", 0)).synchronize()

    def _sync_all(self, op: Json) -> None:
        self.torch.cuda.synchronize(op.get("dev", 0))

    def _empty_cache(self, _op: Json) -> None:
        self.torch.cuda.empty_cache()

    def _set_conf(self, op: Json) -> None:
        self.torch._C._accelerator_setAllocatorSettings(op["conf"])

    def _set_fraction(self, op: Json) -> None:
        self.torch.cuda.set_per_process_memory_fraction(op["fraction"], op.get("dev", 0))

    def _set_external(self, op: Json) -> None:
        self.shim.set_external(op.get("dev", 0), op["bytes"])

    def _pool_new(self, op: Json) -> Json:
        pool = self.torch.cuda.MemPool(
            use_on_oom=op.get("use_on_oom", False), no_split=op.get("no_split", False)
        )
        self.pools[op["pool"]] = pool
        return {"pool_id": list(pool.id)}

    def _pool_del(self, op: Json) -> None:
        del self.pools[op["pool"]]

    def _reset_peak(self, op: Json) -> None:
        self.torch.cuda.reset_peak_memory_stats(op.get("dev", 0))

    def _reset_accumulated(self, op: Json) -> None:
        self.torch.cuda.reset_accumulated_memory_stats(op.get("dev", 0))

    def _capture_begin(self, op: Json) -> None:
        device = op.get("dev", 0)
        graph = self.torch.cuda.CUDAGraph()
        self.captures[op["graph"]] = Capture(graph, self.torch.cuda.current_stream(device))
        self.torch.cuda.set_stream(self._stream(op["stream"], device))
        shared = op.get("pool")
        if shared is None:
            graph.capture_begin()
        else:
            graph.capture_begin(self.captures[shared].graph.pool())

    def _capture_node(self, op: Json) -> None:
        self.shim.add_node(op["stream"] * STREAM_STRIDE)

    def _capture_wait(self, op: Json) -> None:
        device = op.get("dev", 0)
        event = self.torch.cuda.Event()
        event.record(self._stream(op["on"], device))
        self._stream(op["stream"], device).wait_event(event)

    def _capture_end(self, op: Json) -> Json:
        capture = self.captures[op["graph"]]
        capture.graph.capture_end()
        self.torch.cuda.set_stream(capture.outer_stream)
        return {"pool_id": list(capture.graph.pool())}

    def _graph_reset(self, op: Json) -> None:
        self.captures.pop(op["graph"]).graph.reset()

    # What it did.

    def observe(self, with_layout: bool) -> Json:
        """Counters, trace entries since the last call, and (if asked) segments."""
        stats = [self._stats(device) for device in range(self.device_count)]
        snapshot = self.torch._C._cuda_memorySnapshot(None)
        row: Json = {
            "stats": stats[0] if self.device_count == 1 else stats,
            "events": self._events(snapshot["device_traces"]),
        }
        self._start_history()
        if with_layout:
            row |= self._layout(snapshot["segments"])
        return row

    def memory_stats(self) -> Json | list[Json]:
        """Every counter, as PyTorch gives them; pools are keyed `first,second`."""
        rows: list[Json] = []
        for device in range(self.device_count):
            row = dict(self.torch._C._cuda_memoryStats(device))
            row["reserved_bytes_by_private_pools"] = {
                ",".join(map(str, pool)): stat
                for pool, stat in row["reserved_bytes_by_private_pools"].items()
            }
            rows.append(row)
        return rows[0] if self.device_count == 1 else rows

    def _stats(self, device: int) -> Json:
        memory = self.torch._C._cuda_memoryStats(device)

        def current(name: str, pool: str = "all") -> int:
            return int(memory[name][pool]["current"])

        row: Json = {
            "allocated": current("allocated_bytes"),
            "active": current("active_bytes"),
            "requested": current("requested_bytes"),
            "reserved": current("reserved_bytes"),
            "n_alloc": current("allocation"),
            "n_active": current("active"),
            "n_segment": current("segment"),
            "n_inactive_split": current("inactive_split"),
            "inactive_split": current("inactive_split_bytes"),
            "small": [
                current(name, "small_pool")
                for name in (
                    "allocated_bytes",
                    "active_bytes",
                    "requested_bytes",
                    "reserved_bytes",
                    "segment",
                )
            ],
            "peak": [
                memory[name]["all"]["peak"]
                for name in ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
            ],
            "retries": memory["num_alloc_retries"],
            "ooms": memory["num_ooms"],
            "rejections": memory["num_oom_rejections"],
            "syncs": memory["num_sync_all_streams"],
            "dev_alloc": memory["num_device_alloc"],
            "dev_free": memory["num_device_free"],
            "oversize_alloc": memory["oversize_allocations"]["current"],
            "oversize_seg": memory["oversize_segments"]["current"],
            "driver_used": self.shim.used(device),
        }
        private = {
            ",".join(map(str, pool)): stat["all"]["current"]
            for pool, stat in memory.get("reserved_bytes_by_private_pools", {}).items()
        }
        if private:
            row["private_reserved"] = private
        return row

    def _events(self, device_traces: list[list[Json]]) -> list[list[Any]]:
        rows = []
        for device, entries in enumerate(device_traces):
            for entry in entries:
                if entry["action"] == "snapshot":
                    continue
                is_oom = entry["action"] == "oom"
                where = entry["device_free"] if is_oom else entry["addr"]
                row = [entry["action"], where, entry["size"], entry["stream"]]
                if tuple(entry["pool_id"]) != (0, 0) or self.device_count > 1:
                    row.append(list(entry["pool_id"]))
                if self.device_count > 1:
                    row.append(device)
                rows.append(row)
        return rows

    def _layout(self, segments: list[Json]) -> Json:
        rows, canonical = [], []
        for segment in segments:
            blocks = [
                [block["size"], BLOCK_LETTERS[block["state"]], block["requested_size"]]
                for block in segment["blocks"]
            ]
            pool_id = list(segment["segment_pool_id"])
            row = {
                "addr": segment["address"],
                "size": segment["total_size"],
                "stream": segment["stream"],
                "pool": segment["segment_type"],
                "exp": segment["is_expandable"],
                "pid": pool_id,
                "blocks": blocks,
            }
            if self.device_count > 1:
                row["dev"] = segment["device"]
            rows.append(row)
            without_address = [
                segment["device"],
                segment["stream"],
                segment["segment_type"],
                segment["is_expandable"],
                pool_id,
                segment["total_size"],
                blocks,
            ]
            canonical.append(json.dumps(without_address))
        text = "\n".join(sorted(canonical))
        return {"segs": rows, "canon": hashlib.sha1(text.encode()).hexdigest()[:16]}

    def _start_history(self) -> None:
        """Records trace entries from here on; the older ones go."""
        self.torch._C._cuda_record_memory_history(
            "all", None, "python", MOST_HISTORY_ENTRIES, True, False, False, [], False, True
        )

    def _stream(self, number: int, device: int) -> Any:
        key = (number, device)
        if key not in self.streams:
            self.streams[key] = (
                self.torch.cuda.ExternalStream(number * STREAM_STRIDE, device=device)
                if number
                else self.torch.cuda.default_stream(device)
            )
        return self.streams[key]


def run(
    trace: Path, out: Path, torch: ModuleType, layout_every: int, conf_from_environment: bool
) -> None:
    """Writes one line for each line of the trace; each is complete before the next step, which may crash."""
    lines = [
        json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines() if line.strip()
    ]
    config, ops = lines[0], lines[1:]
    if config["op"] != "config":
        raise ValueError(f"{trace}: the first line must be a config")
    oracle = Oracle(config, torch, Shim(build().runtime))
    oracle.start(conf_from_environment)
    with out.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"i": 0, "op": "config", **oracle.observe(True)}) + "\n")
        for i, op in enumerate(ops, 1):
            row: Json = {"i": i, "op": op["op"]}
            if "id" in op:
                row["id"] = op["id"]
            try:
                row |= oracle.step(op)
            except Exception as error:  # whatever the allocator raises is part of the result
                row["error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            is_last = i == len(ops)
            row |= oracle.observe(is_last or i % layout_every == 0)
            if is_last:
                row["memory_stats"] = oracle.memory_stats()
            file.write(json.dumps(row) + "\n")
            file.flush()


def run_batch(traces: list[Path], folder: Path, layout_every: int) -> list[Path]:
    """Runs each trace in a forked child, so that torch is imported once. Returns the traces that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    import torch

    failed = []
    for trace in traces:
        child = os.fork()
        if child == 0:
            try:
                with trace.open(encoding="utf-8") as file:
                    config = json.loads(file.readline())
                os.environ.update(fake_devices(config).environment())
                run(trace, folder / trace.name, torch, layout_every, conf_from_environment=False)
            except BaseException:  # the child must not go on as the parent
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status != 0:
            failed.append(trace)
    return failed


def main() -> int:
    """Runs the command line. Returns the exit status: 1 when a trace ended early."""
    parser = argparse.ArgumentParser(
        description="Run allocator traces on the real CUDACachingAllocator."
    )
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("/dev/stdout"))
    parser.add_argument("--layout-every", type=int, default=1, metavar="N")
    parser.add_argument("--env", action="store_true", help="pass conf in PYTORCH_ALLOC_CONF")
    parser.add_argument("--batch", type=Path, metavar="OUTDIR")
    arguments = parser.parse_args()
    try:
        preload = Preload()
    except CannotBuildError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.batch is not None:
        start_again(preload)
        failed = run_batch(arguments.traces, arguments.batch, arguments.layout_every)
        for trace in failed:
            print(f"ended early: {trace}", file=sys.stderr)
        return 1 if failed else 0
    only: Path = arguments.traces[0]
    with only.open(encoding="utf-8") as file:
        config = json.loads(file.readline())
    variables = fake_devices(config).environment()
    if arguments.env:
        variables["PYTORCH_ALLOC_CONF"] = config.get("conf") or ""
    start_again(preload, variables)
    import torch

    run(only, arguments.out, torch, arguments.layout_every, arguments.env)
    return 0


if __name__ == "__main__":
    sys.exit(main())
