"""Numbers of the devices that tensors live on, and their description on the wire."""

from __future__ import annotations

import torch

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.worker_spec import GpuProperties

CPU_DEVICE = 255
"""Device id of host memory. CUDA device i has id i + 1."""


class Devices:
    """Describes each device once, before the first event that refers to it."""

    def __init__(self, sink: EventSink, gpu: GpuProperties | None) -> None:
        self._sink = sink
        self._gpu = gpu
        self._known: dict[torch.device, int] = {}

    def id_of(self, device: torch.device) -> int:
        """The id of a device; 0 when tensors there hold no memory (meta)."""
        found = self._known.get(device)
        if found is None:
            found = self._known[device] = self._describe(device)
        return found

    def _describe(self, device: torch.device) -> int:
        if device.type == "cuda":
            index = device.index or 0
            gpu = self._gpu
            name, properties = ("cuda", {}) if gpu is None else (gpu.name, _properties(gpu))
            self._sink.emit(protocol.device(index + 1, "cuda", index, name, properties))
            return index + 1
        if device.type == "cpu":
            if CPU_DEVICE not in self._known.values():
                self._sink.emit(protocol.device(CPU_DEVICE, "cpu", 0, "host", {}))
            return CPU_DEVICE
        return 0


def _properties(gpu: GpuProperties) -> protocol.Fields:
    return {
        "major": gpu.capability[0],
        "minor": gpu.capability[1],
        "total_memory": gpu.total_memory,
        "multi_processor_count": gpu.multi_processor_count,
    }
