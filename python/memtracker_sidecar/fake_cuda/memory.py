"""Memory queries of torch.cuda, answered from the recorder's live counters, and allocator calls, reported as events.

What the counters know is allocated bytes (each storage rounded to 512, as the caching allocator rounds). Reserved bytes need
the allocator model, which runs later on the trace; until then reserved is answered with the peak of allocated, its lower bound.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.fake_cuda import streams
from memtracker_sidecar.fake_cuda.streams import device_index_of
from memtracker_sidecar.replacements import Replacements


class MemoryCounters(Protocol):
    """Live byte counters of one process, by CUDA device index."""

    def allocated(self, index: int) -> int: ...
    def peak_allocated(self, index: int) -> int: ...
    def reset_peak(self, index: int) -> None: ...


class NoCounters:
    """Counters before a recorder is there: everything is zero."""

    def allocated(self, index: int) -> int:
        return 0

    def peak_allocated(self, index: int) -> int:
        return 0

    def reset_peak(self, index: int) -> None:
        return


_pool_ids = itertools.count(1)
_pools_in_use: list[int] = []


def current_pool() -> int:
    """Id of the private pool that allocations are routed to; 0 is none."""
    return _pools_in_use[-1] if _pools_in_use else 0


class Pools:
    """Private pools (torch.cuda.MemPool and CUDA graphs), reported as they are made, entered, left and released."""

    def __init__(self, sink: EventSink | None) -> None:
        self._sink = sink
        self._graph_pools: dict[Any, int] = {}

    def create(self, kind: str, options: protocol.Fields) -> int:
        pool = next(_pool_ids)
        if self._sink is not None:
            self._sink.emit(protocol.pool_create(pool, streams.current_device() + 1, kind, options))
        return pool

    def begin(self, pool: int) -> None:
        _pools_in_use.append(pool)
        if self._sink is not None:
            index = streams.current_device()
            self._sink.emit(protocol.pool_begin(pool, streams.current_stream_id(index)))

    def end(self, pool: int) -> None:
        if pool in _pools_in_use:
            _pools_in_use.remove(pool)
        if self._sink is not None:
            self._sink.emit(protocol.pool_end(pool))

    def release(self, pool: int) -> None:
        if self._sink is not None:
            self._sink.emit(protocol.pool_release(pool))

    def of_handle(self, handle: Any) -> int:
        """The pool of a handle as torch.cuda.graph_pool_handle() and MemPool.id give them, made on first use."""
        found = self._graph_pools.get(handle)
        if found is None:
            found = self._graph_pools[handle] = self.create("graph", {})
        return found

    def adopt(self, handle: Any, pool: int) -> None:
        self._graph_pools[handle] = pool


pools = Pools(None)


class MemPool:
    """Stands for torch.cuda.MemPool."""

    def __init__(
        self,
        allocator: Any = None,
        use_on_oom: bool = False,
        no_split: bool = False,
        symmetric: bool = False,
        **_: Any,
    ) -> None:
        self.allocator = allocator
        self.pool = pools.create(
            "mempool", {"use_on_oom": use_on_oom, "no_split": no_split, "symmetric": symmetric}
        )
        self.id = (0, self.pool)
        pools.adopt(self.id, self.pool)

    def use_count(self) -> int:
        return 1

    def snapshot(self, *_arguments: Any) -> list[Any]:
        return []

    def __del__(self) -> None:
        pools.release(self.pool)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    pools.begin(pool.pool)
    try:
        yield
    finally:
        pools.end(pool.pool)


def install(
    replacements: Replacements, sink: EventSink | None, counters: MemoryCounters, total_memory: int
) -> None:
    """Replaces the memory functions of torch.cuda."""
    global pools
    pools = Pools(sink)
    fraction = {"value": 1.0}

    def emit(event: protocol.Event) -> None:
        if sink is not None:
            sink.emit(event)

    def allocated(device: Any = None) -> int:
        return counters.allocated(device_index_of(device))

    def peak(device: Any = None) -> int:
        return counters.peak_allocated(device_index_of(device))

    def memory_stats(device: Any = None) -> dict[str, Any]:
        now, most = allocated(device), peak(device)
        stats: dict[str, Any] = collections.defaultdict(int)
        for kind in ("allocated_bytes", "active_bytes", "requested_bytes"):
            stats[f"{kind}.all.current"], stats[f"{kind}.all.peak"] = now, most
        stats["reserved_bytes.all.current"] = stats["reserved_bytes.all.peak"] = most
        return stats

    def reset_peak(device: Any = None) -> None:
        index = device_index_of(device)
        counters.reset_peak(index)
        emit(protocol.reset_peak(index + 1))

    def empty_cache() -> None:
        emit(protocol.empty_cache(streams.current_device() + 1))

    def set_fraction(value: float, device: Any = None) -> None:
        fraction["value"] = float(value)
        emit(protocol.set_fraction(device_index_of(device) + 1, float(value)))

    def set_settings(conf: str) -> None:
        emit(protocol.allocator_settings(str(conf)))

    nothing = lambda *_arguments, **_options: None  # noqa: E731
    surface: dict[str, Any] = {
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": lambda device=None: {},
        "memory_allocated": allocated,
        "max_memory_allocated": peak,
        "memory_reserved": peak,
        "max_memory_reserved": peak,
        "memory_cached": peak,
        "max_memory_cached": peak,
        "mem_get_info": lambda device=None: (
            max(0, total_memory - allocated(device)),
            total_memory,
        ),
        "device_memory_used": allocated,
        "memory_usage": lambda device=None: 0,
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak,
        "reset_accumulated_memory_stats": nothing,
        "empty_cache": empty_cache,
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": lambda device=None: fraction["value"],
        "memory_summary": lambda device=None, abbreviated=False: (
            f"{allocated(device)} bytes allocated (fake CUDA)"
        ),
        "memory_snapshot": lambda *_arguments, **_options: [],
        "get_allocator_backend": lambda: "native",
        "MemPool": MemPool,
        "use_mem_pool": use_mem_pool,
    }
    reason = (
        "there is no caching allocator here; the recorder's counters answer and calls become events"
    )
    replacements.set_all(torch.cuda, surface, reason)
    replacements.set_all(torch.cuda.memory, surface, reason)
    replacements.set_all(
        torch.cuda.memory,
        {
            "_set_allocator_settings": set_settings,
            "_record_memory_history": nothing,
            "_dump_snapshot": nothing,
            "_snapshot": lambda *_arguments, **_options: {"segments": [], "device_traces": []},
        },
        reason,
    )
    replacements.set_existing(
        torch.accelerator,
        {
            "empty_cache": empty_cache,
            "memory_stats": memory_stats,
            "memory_allocated": allocated,
            "max_memory_allocated": peak,
            "memory_reserved": peak,
            "max_memory_reserved": peak,
            "reset_peak_memory_stats": reset_peak,
            "reset_accumulated_memory_stats": nothing,
            "get_memory_info": surface["mem_get_info"],
        },
        reason,
    )
    replacements.set_existing(
        torch._C,
        {
            "_cuda_beginAllocateCurrentThreadToPool": lambda _device, handle: pools.begin(
                pools.of_handle(handle)
            ),
            "_cuda_endAllocateToPool": lambda _device, handle: pools.end(pools.of_handle(handle)),
            "_cuda_releasePool": lambda _device, handle: pools.release(pools.of_handle(handle)),
        },
        "a graph's first run, without a capture, goes into its pool too",
    )
    if hasattr(torch._C, "_cuda_setMemoryFraction"):
        replacements.set(
            torch._C,
            "_cuda_setMemoryFraction",
            lambda value, index: set_fraction(value, index),
            reason,
        )
