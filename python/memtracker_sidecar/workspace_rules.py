"""Memory that a CUDA kernel allocates inside itself, which FakeTensor cannot see.

A rule belongs to one operator and says what the operator's CUDA implementation asks of the caching allocator besides its
outputs: how many bytes, when, and for how long. The recorder applies it at that instant with ordinary alloc and free events.
Rules are registered by operator name (`aten::mm`); several may belong to one operator. A rule returns nothing when the
implementation allocates nothing in this case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from memtracker_sidecar.fake_cuda.streams import current_stream_id


@dataclass(frozen=True)
class GpuLimits:
    """What host code asks of the device before it sizes a workspace."""

    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int


@dataclass(frozen=True)
class Workspace:
    """One allocation inside an operator."""

    bytes: int
    name: str
    """What it is, as a person would look for it: `cublas workspace`, `sort keys`."""
    when: Literal["before", "after"]
    """Relative to the operator's outputs: before they are allocated (so it may take their place later) or after."""
    source: str
    """Project, file and function of the rule, or the measurement."""
    evidence: Literal["source", "calibrated", "assumed"] = "source"
    key: tuple[Any, ...] | None = None
    """None: freed when the operator returns. A key: kept, and made only once for each key."""
    transient: bool = False
    """Freed again before anything else is allocated, as scratch of one kernel in a sequence."""


@dataclass(frozen=True)
class Call:
    """One call of an operator, before it runs (`out` is None) or after."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    out: Any
    device: torch.device
    stream: int
    gpu: GpuLimits
    in_backward: bool
    """The autograd engine runs the backward of CUDA nodes in a thread of its own for each device."""


Rule = Callable[[Call], Iterable[Workspace]]


class WorkspaceRules:
    """The rules of one run, by operator name."""

    def __init__(self) -> None:
        self._rules: dict[str, list[Rule]] = {}

    def add(self, operators: Iterable[str], rule: Rule) -> None:
        """Registers a rule for operators by schema name, without overload: `aten::addmm`."""
        for operator in operators:
            self._rules.setdefault(operator, []).append(rule)

    def of(self, operator: str) -> Sequence[Rule] | None:
        """The rules of an operator, or None."""
        return self._rules.get(operator)


def make_call(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    device: torch.device,
    gpu: GpuLimits,
) -> Call:
    """Describes a call at this instant."""
    return Call(
        func=func,
        args=args,
        kwargs=kwargs,
        out=out,
        device=device,
        stream=current_stream_id(device.index or 0),
        gpu=gpu,
        in_backward=torch._C._current_graph_task_id() != -1,
    )


def argument(call: Call, name: str, default: Any = None) -> Any:
    """An argument of the call by its name in the schema, wherever it was passed."""
    if name in call.kwargs:
        return call.kwargs[name]
    for position, declared in enumerate(call.func._schema.arguments):
        if declared.name == name:
            if position < len(call.args):
                return call.args[position]
            return declared.default_value if declared.has_default_value() else default
    return default
