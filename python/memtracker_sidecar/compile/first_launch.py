"""What Inductor's autotuning allocates: the first run of a kernel that has several configurations measures them on the GPU.

A measurement clones the buffers that the kernel writes in place and flushes the L2 cache with a buffer of its size. All of it is
freed again, but segments stay in the cache, and later blocks are cut from them. Sources, PyTorch 2.14.1:
torch/_inductor/runtime/triton_heuristics.py, `CachingAutotuner.run`, `bench`, `copy_args_to_cpu_if_needed`, `maybe_clone_args`;
torch/_inductor/runtime/benchmarking.py, `InductorBenchmarker.benchmark_gpu`. How many configurations a kernel has is decided by
the generated source itself: its decorator runs; nothing is compiled.

The measurement is repeated for every configuration and many times over; repeating changes nothing for the allocator, so it is
done once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.compile.silent_kernel import SilentKernel


class TritonKernel(SilentKernel):
    """A kernel that launches nothing and allocates what its first launch allocates."""

    def __init__(
        self,
        name: str,
        source: str,
        uncovered: Callable[..., None],
        flush_bytes: Callable[[], int],
    ) -> None:
        super().__init__(name)
        self._source = source
        self._uncovered = uncovered
        self._flush_bytes = flush_bytes
        self._tuned = False

    def run(self, *arguments: Any, **_options: Any) -> None:
        if not self._tuned:
            self._tuned = True
            self._tune(arguments)

    def _tune(self, arguments: tuple[Any, ...]) -> None:
        from torch._inductor.codecache import PyCodeCache

        try:
            kernel = getattr(PyCodeCache.load(self._source), self.name)
            if len(kernel.configs) < 2:
                return
            written = _buffers_to_clone(kernel, arguments)
        except Exception as error:
            self._uncovered(
                "kernel",
                "Inductor autotuning",
                detail=f"{type(error).__name__}: {error}"[:200],
                assumption="the kernel is not measured on its first launch",
            )
            return
        _clone(written)
        flush = torch.empty(self._flush_bytes() // 4, dtype=torch.int, device="cuda")
        _clone(written)
        del flush


def _clone(buffers: list[torch.Tensor]) -> None:
    """Clones all buffers, then lets go of the clones."""
    clones = [_storage_like(buffer) for buffer in buffers]
    del clones


def _storage_like(buffer: torch.Tensor) -> torch.Tensor:
    # compile_fx.clone_preserve_strides: a flat copy of the storage that the strides span.
    return torch.empty_strided((_span(buffer),), (1,), dtype=buffer.dtype, device=buffer.device)


def _span(buffer: torch.Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(buffer.size(), buffer.stride()))


def _buffers_to_clone(kernel: Any, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    """Tensors that the kernel writes in place, without those that are copied to the host to keep the peak."""
    written = [
        argument
        for name, argument in itertools.zip_longest(
            kernel.fn.arg_names[: len(arguments)], arguments
        )
        if name in kernel.mutated_arg_names
        and isinstance(argument, torch.Tensor)
        and argument.device.type == "cuda"
        and argument.numel() > 0
    ]
    if not kernel.optimize_mem:
        return written
    budget = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    kept: list[torch.Tensor] = []
    for buffer in written:
        size = _span(buffer) * buffer.element_size()
        if size <= budget:
            budget -= size
            kept.append(buffer)
    return kept
