"""Connects the kernels to a recorded run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from memtracker_sidecar import protocol

if TYPE_CHECKING:
    import torch

    from memtracker_sidecar.adapter_api import AdapterContext


class RecordingHost:
    """The host of the kernels while a run is recorded (`extension.KernelHost`)."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context

    def operator(self, name: str) -> contextlib.AbstractContextManager[None]:
        return self._context.recorder.named(name)

    def uncovered(self, kind: str, name: str, detail: str, assumption: str, nbytes: int) -> None:
        self._context.uncovered(kind, name, detail=detail, assumption=assumption, bytes=nbytes)

    def external(self, name: str, category: str, nbytes: int, detail: dict[str, str]) -> None:
        import torch

        device = torch.cuda.current_device() + 1
        self._context.emit(
            protocol.external_alloc(
                name, device, category, nbytes, {"evidence": "source", **detail}
            )
        )

    def view_of_external(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        import torch

        recorder = self._context.recorder
        with recorder.paused():
            tensor = torch.empty(shape, dtype=dtype, device="cuda")
        recorder.ignore(tensor)
        return tensor
