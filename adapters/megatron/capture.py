"""Labels a Megatron-LM run on a real GPU with the phases of a trace."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memtracker_sidecar.capture.context import CaptureContext

from . import phases


def install(context: CaptureContext) -> None:
    """Waits for `megatron.training.training`, which has imported everything that is labelled."""
    context.on_module("megatron.training.training", lambda _module: _label(context, _module))


def _label(context: CaptureContext, _module: ModuleType) -> None:
    def register(model: Any, optimizer: Any) -> None:
        chunks = model if isinstance(model, list) else [model]
        for number, chunk in enumerate(chunks):
            context.register_model(chunk, f"chunk{number}" if len(chunks) > 1 else "")
        for part in getattr(optimizer, "chained_optimizers", None) or [optimizer]:
            context.register_optimizer(getattr(part, "optimizer", part))

    phases.install(context, register, read_memory=False)
