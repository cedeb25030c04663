"""CUDA without a GPU, on the CPU build and on the CUDA build of PyTorch.

`install` makes `torch.cuda` answer like the pretended GPU, makes autograd work on fake CUDA tensors, and reports streams,
events and allocator calls to a sink. One concern a file: `device_guard` (C++ core), `device`, `streams`, `memory`, `rng`,
`graphs`, `fake_tensor`, `addresses`.
"""

from __future__ import annotations

from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.fake_cuda import (
    addresses,
    device,
    device_guard,
    fake_tensor,
    graphs,
    memory,
    rng,
    streams,
)
from memtracker_sidecar.fake_cuda.device_guard import FakeCudaUnavailable
from memtracker_sidecar.fake_cuda.memory import MemoryCounters, NoCounters
from memtracker_sidecar.replacements import Replacements
from memtracker_sidecar.worker_spec import GpuProperties

__all__ = ["FakeCudaUnavailable", "MemoryCounters", "NoCounters", "install"]


def install(
    replacements: Replacements,
    gpu: GpuProperties,
    *,
    device_count: int = 1,
    current: int = 0,
    sink: EventSink | None = None,
    counters: MemoryCounters | None = None,
) -> None:
    """Pretends `device_count` GPUs (at most eight) of the given kind; `current` is this rank's.

    Raises:
        FakeCudaUnavailable: this PyTorch is not laid out as expected.
    """
    import torch._dynamo  # noqa: F401  it collects torch.cuda's functions when imported, and must see the real ones

    count = min(max(device_count, current + 1), device_guard.MAX_DEVICES)
    device.install(replacements, gpu, count)
    fake_tensor.install(replacements)
    addresses.install(replacements)
    streams.install(replacements, sink)
    memory.install(replacements, sink, counters or NoCounters(), gpu.total_memory)
    rng.install(replacements, count)
    graphs.install(replacements)
    device_guard.install()
    device.set_device(current % count)
