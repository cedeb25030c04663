"""Answers to questions about values and about other ranks, where Megatron asks them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memtracker_sidecar.adapter_api import AdapterContext, InterfaceChanged

OPTIMIZER = "megatron.core.optimizer.optimizer"


def install(context: AdapterContext) -> None:
    _overflow(context)
    timers = context.require("megatron.core.timers", "Timers")
    for name in ("log", "write"):
        context.replacements.set(timers, name, lambda *_arguments, **_options: None, "times would be gathered from all ranks")
    for name in ("save_checkpoint_and_time", "save_checkpoint"):
        _nothing(context, "megatron.training.training", name, "no checkpoint is written")
    _nothing(context, "megatron.training.training", "check_param_hashes_across_dp_replicas", "values do not exist", True)


def _nothing(context: AdapterContext, module: str, attribute: str, reason: str, answer: Any = None) -> None:
    try:
        context.replace(module, attribute, lambda _original: lambda *_arguments, **_options: answer, reason)
    except InterfaceChanged as error:
        context.uncovered("feature", f"{module}.{attribute}", detail=str(error), assumption="")


def _overflow(context: AdapterContext) -> None:
    """Gradients are finite, but for the first steps of fp16 with a dynamic loss scale.

    Such runs start from a scale (2^32 by default) at which fp16 gradients overflow, so that the first update is skipped: its step
    has no optimizer state yet. How many steps is the option `overflow`.
    """
    skipped = context.option("overflow", 1)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def check(self: Any, *arguments: Any, **options: Any) -> Any:
            scaler = getattr(self, "grad_scaler", None)
            dynamic = scaler is not None and type(scaler).__name__ == "DynamicGradScaler"
            answer = 1.0 if dynamic and context.steps_done < skipped else 0.0
            if dynamic:
                context.uncovered(
                    "data_dependent", "gradient overflow", assumption=f"the first {skipped} steps overflow, later ones do not"
                )
            outer = context.data_dependent.scalar
            context.data_dependent.scalar = lambda _tensor: answer
            try:
                return original(self, *arguments, **options)
            finally:
                context.data_dependent.scalar = outer

        return check

    context.replace(
        OPTIMIZER,
        "MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan",
        make,
        "whether gradients are finite decides whether the update happens",
    )

