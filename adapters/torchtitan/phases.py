"""Labels every part of a TorchTitan run: initialization, step, micro-batch, pipeline action, clipping, optimizer, …

A `Span` names a function of the checkout (or of torch.distributed.pipelining, which TorchTitan runs its schedules
with) and the phase that is open while it runs. Wrapping is the same for every generation; only the table differs.
Labels are read from the call: the step from the trainer, the micro-batch from a counter that restarts with each step
(or from the pipeline action, which names its own).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from memtracker_sidecar.replacements import Replacements

from .interface import Need, holder_of

Label = str | int
Labels = Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Label]]


class PhaseRecorder(Protocol):
    """What the sidecar offers to adapters: a labelled span."""

    def phase(self, name: str, **labels: Label) -> contextlib.AbstractContextManager[None]: ...


def _no_labels(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Label]:
    del arguments, keywords
    return {}


@dataclass(frozen=True)
class Span:
    """While `module.attribute` runs, `phase` is open with the labels that `labels(arguments, keywords)` gives."""

    module: str
    attribute: str
    phase: str
    labels: Labels = _no_labels
    required: bool = True

    @property
    def need(self) -> Need:
        return Need(self.module, self.attribute, f"labels the phase {self.phase}", self.required)


class MicroBatchCounter:
    """Counts the micro-batches of one optimizer step, for trainers that accumulate gradients in a loop."""

    def __init__(self) -> None:
        self._next = 0

    def restart(self) -> None:
        self._next = 0

    def labels(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Label]:
        del arguments, keywords
        self._next += 1
        return {"micro_batch": self._next - 1}


def _argument(
    arguments: tuple[Any, ...], keywords: dict[str, Any], position: int, name: str
) -> Any:
    return arguments[position] if len(arguments) > position else keywords.get(name)


def _chunk(name: str) -> Labels:
    """Labels of `PipelineStage.<pass>_one_chunk(self, chunk_id, …)`: which stage, which micro-batch."""

    def labels(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Label]:
        stage = arguments[0]
        return {
            "stage": int(stage.stage_index),
            "micro_batch": int(_argument(arguments, keywords, 1, name)),
        }

    return labels


_STAGE = "torch.distributed.pipelining.stage"
PIPELINE_SPANS = (
    Span(
        _STAGE,
        "_PipelineStageBase.forward_one_chunk",
        "forward",
        _chunk("fwd_chunk_id"),
    ),
    Span(
        _STAGE,
        "_PipelineStageBase.backward_one_chunk",
        "backward",
        _chunk("bwd_chunk_id"),
    ),
    Span(
        _STAGE,
        "_PipelineStageBase.backward_weight_one_chunk",
        "backward_weight",
        _chunk("bwd_chunk_id"),
    ),
)
"""Each action of a schedule (torch/distributed/pipelining/stage.py); the same in every TorchTitan generation."""

COMMON_SPANS = (
    *PIPELINE_SPANS,
    Span("torch.nn", "Module.to_empty", "materialize"),
    Span("torch", "Tensor.backward", "backward"),
)
"""What every generation does through PyTorch."""


def step_of_trainer(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Label]:
    del keywords
    return {"step": int(arguments[0].step)}


def install(recorder: PhaseRecorder, replacements: Replacements, spans: Iterable[Span]) -> None:
    """Wraps the functions of the table. A span whose function the checkout does not have is passed over here: the
    interface check has already named it."""
    for span in spans:
        found = holder_of(span.module, span.attribute)
        if found is not None:
            holder, name = found
            replacements.set(
                holder,
                name,
                _spanned(recorder, getattr(holder, name), span),
                f"opens phase {span.phase}",
            )


def install_on_class(
    recorder: PhaseRecorder,
    replacements: Replacements,
    owner: type[Any],
    spans: Iterable[Span],
) -> None:
    """Wraps methods on `owner`, which may inherit or override them: the outermost definition gets the phase, once."""
    for span in spans:
        name = span.attribute.rpartition(".")[2]
        function = getattr(owner, name, None)
        if function is not None:
            replacements.set(
                owner,
                name,
                _spanned(recorder, function, span),
                f"opens phase {span.phase}",
            )


def _is_traced() -> bool:
    """Whether a compiler or a graph trainer only looks at what would run."""
    return torch.compiler.is_compiling() or torch.fx._symbolic_trace.is_fx_symbolic_tracing()


def _spanned(
    recorder: PhaseRecorder, function: Callable[..., Any], span: Span
) -> Callable[..., Any]:
    @functools.wraps(function)
    def spanned(*arguments: Any, **keywords: Any) -> Any:
        if _is_traced():
            return function(*arguments, **keywords)
        with recorder.phase(span.phase, **span.labels(arguments, keywords)):
            return function(*arguments, **keywords)

    return spanned


def span_loss(recorder: PhaseRecorder, replacements: Replacements, trainer: Any) -> None:
    """Opens `loss` around the trainer's loss: an object whose class is called (0.3 and after) or a plain function."""
    loss = getattr(trainer, "loss_fn", None)
    if loss is None:
        return
    span = Span("", "", "loss")
    if type(loss).__module__.startswith("torchtitan") and callable(loss):
        replacements.set(
            type(loss),
            "__call__",
            _spanned(recorder, type(loss).__call__, span),
            "opens phase loss",
        )
    elif callable(loss):
        trainer.loss_fn = _spanned(recorder, loss, span)


def span_forward(recorder: PhaseRecorder, model: torch.nn.Module) -> None:
    """Opens `forward` around a call of the root module, hooks included: FSDP gathers and reshards in hooks, which run
    inside nn.Module._call_impl (torch/nn/modules/module.py), so that is what is wrapped, on the instance."""
    name = (
        "_call_impl"
        if getattr(model, "_compiled_call_impl", None) is None
        else "_compiled_call_impl"
    )
    call = getattr(model, name)

    @functools.wraps(call)
    def spanned(*arguments: Any, **keywords: Any) -> Any:
        if _is_traced():
            return call(*arguments, **keywords)
        with recorder.phase("forward"):
            return call(*arguments, **keywords)

    object.__setattr__(model, name, spanned)
