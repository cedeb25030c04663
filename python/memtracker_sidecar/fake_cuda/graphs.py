"""CUDA graphs without a GPU: a capture runs the code once into the graph's private pool, a replay does nothing.

That is what a capture does to memory on a GPU: the tensors of the captured region live in the pool of the graph, and a replay
allocates nothing.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from memtracker_sidecar.fake_cuda import memory, streams
from memtracker_sidecar.replacements import Replacements

_handles = itertools.count(1)
_captures = 0


def is_capturing() -> bool:
    return _captures > 0


def graph_pool_handle() -> tuple[int, int]:
    return (0, -next(_handles))


def begin_allocate(_device: int, handle: Any) -> None:
    """Allocations go to the pool of a handle until `end_allocate`, without a capture."""
    memory.pools.begin(memory.pools.of_handle(handle))


def end_allocate(_device: int, handle: Any) -> None:
    memory.pools.end(memory.pools.of_handle(handle))


def release_pool(_device: int, handle: Any) -> None:
    memory.pools.release(memory.pools.of_handle(handle))


class CUDAGraph:
    """Stands for torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False, **_options: Any) -> None:
        self._handle: Any = None
        self._pool = 0

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **_options: Any
    ) -> None:
        global _captures
        self._handle = getattr(pool, "id", pool) or graph_pool_handle()
        self._pool = memory.pools.of_handle(self._handle)
        memory.pools.begin(self._pool)
        _captures += 1

    def capture_end(self) -> None:
        global _captures
        _captures -= 1
        memory.pools.end(self._pool)

    def instantiate(self) -> None:
        return

    def replay(self) -> None:
        return

    def reset(self) -> None:
        if self._pool:
            memory.pools.release(self._pool)
            self._pool = 0

    def pool(self) -> Any:
        return self._handle

    def register_generator_state(self, *_arguments: Any) -> None:
        return

    def enable_debug_mode(self) -> None:
        return

    def debug_dump(self, *_arguments: Any) -> None:
        return

    def __del__(self) -> None:
        self.reset()


class GraphContext:
    """`with torch.cuda.graph(g)`."""

    default_capture_stream: streams.Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        **_: Any,
    ) -> None:
        if stream is None:
            if GraphContext.default_capture_stream is None:
                GraphContext.default_capture_stream = streams.Stream()
            stream = GraphContext.default_capture_stream
        self.capture_stream = stream
        self._context = streams.StreamContext(stream)
        self.cuda_graph = cuda_graph
        self._pool = pool

    def __enter__(self) -> None:
        import gc

        streams.synchronize()
        gc.collect()  # torch.cuda.graphs.graph.__enter__ does both before a capture
        torch.cuda.empty_cache()
        self._context.__enter__()
        self.cuda_graph.capture_begin(self._pool)

    def __exit__(self, *error: object) -> None:
        self.cuda_graph.capture_end()
        self._context.__exit__(*error)


def install(replacements: Replacements) -> None:
    """Replaces CUDA graphs in torch.cuda."""
    surface = {
        "CUDAGraph": CUDAGraph,
        "graph": GraphContext,
        "graph_pool_handle": graph_pool_handle,
        "is_current_stream_capturing": is_capturing,
    }
    reason = "graphs need a driver; a capture is run once into a private pool"
    replacements.set_all(torch.cuda, surface, reason)
    replacements.set_all(torch.cuda.graphs, surface, reason)
    replacements.set_existing(
        torch._C,
        {
            "_graph_pool_handle": graph_pool_handle,
            "_cuda_beginAllocateCurrentThreadToPool": begin_allocate,
            "_cuda_beginAllocateCurrentStreamToPool": begin_allocate,
            "_cuda_beginAllocateToPool": begin_allocate,
            "_cuda_endAllocateToPool": end_allocate,
            "_cuda_releasePool": release_pool,
        },
        "libraries call these below torch.cuda",
    )
