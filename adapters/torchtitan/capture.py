"""Labels a TorchTitan run on a real GPU with the phases of a trace.

The generation is told by the files of the checkout that the job imports. `Trainer` may be an imported class or, up to 0.2, one that
the main module itself makes (`python -m torchtitan.train`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from memtracker_sidecar.capture.context import CaptureContext

from . import phases
from .adapter import generation_of


def install(context: CaptureContext) -> None:
    """Waits for the package."""
    context.on_module("torchtitan", lambda package: _label(context, package))


def _label(context: CaptureContext, package: ModuleType) -> None:
    checkout = Path(next(iter(package.__path__))).resolve().parent
    generation = generation_of(checkout)
    if generation is None:
        context.uncovered(
            "feature",
            "phases",
            detail=f"{checkout} has the files of no known TorchTitan generation",
        )
        return
    context.facts("torchtitan", {"generation": generation.NAME, "checkout": str(checkout)})
    for span in generation.SPANS:
        context.on_module(span.module, functools.partial(_install_span, context, span))
    trainers = {
        (span.module, span.attribute.partition(".")[0]) for span in generation.TRAINER_SPANS
    }
    for module, name in trainers:
        label = functools.partial(_label_trainer, context, generation)
        context.on_module(
            module, lambda loaded, name=name, label=label: label(getattr(loaded, name))
        )
        context.on_main_class(module, name, label)


def _install_span(context: CaptureContext, span: phases.Span, _module: ModuleType) -> None:
    phases.install(context.phases, context.replacements, [span])


def _label_trainer(context: CaptureContext, generation: ModuleType, trainer: type[Any]) -> None:
    # Inside the `init` phase: what the trainer built is registered before the phase's inventory is taken.
    built = _registers_models(context, trainer.__init__)
    context.replacements.set(
        trainer, "__init__", built, "registers the models that the trainer built"
    )
    phases.install_on_class(context.phases, context.replacements, trainer, generation.TRAINER_SPANS)
    step = trainer.train_step
    context.replacements.set(trainer, "train_step", _counted(context, step), "counts steps")


def _registers_models(
    context: CaptureContext, original: Callable[..., None]
) -> Callable[..., None]:
    @functools.wraps(original)
    def initialise(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        parts = list(getattr(self, "model_parts", ()))
        for part in parts:
            context.register_model(part)
        if len(parts) == 1:
            phases.span_forward(context.phases, parts[0])
        phases.span_loss(context.phases, context.replacements, self)
        for optimizer in getattr(self, "optimizers", ()):
            context.register_optimizer(optimizer)

    return initialise


def _counted(context: CaptureContext, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def train_step(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        context.step_done()
        return result

    return train_step
