"""Memory that a CUDA kernel allocates inside itself, which FakeTensor cannot see.

A rule belongs to one operator and says what the operator's CUDA implementation asks of the caching allocator besides its
outputs: how many bytes, when, and for how long. The recorder applies it at that instant with ordinary alloc and free events.
Rules are registered by operator name (`aten::mm`); several may belong to one operator. A rule returns nothing when the
implementation allocates nothing in this case.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from memtracker_sidecar.fake_cuda.streams import current_stream_id


@dataclass(frozen=True)
class Workspace:
    """One allocation inside an operator."""

    bytes: int
    name: str
    """What it is, as a person would look for it: `cublas workspace`, `sort keys`."""
    when: Literal["before", "after"]
    """Relative to the operator's outputs: before they are allocated (so it may take their place later) or after."""
    key: tuple[Any, ...] | None
    """None: freed when the operator returns. A key: kept, and made only once for each key."""
    evidence: Literal["source", "calibrated", "assumed"]
    source: str
    """Project, version, file and function of the rule, or the measurement."""


@dataclass(frozen=True)
class Call:
    """One call of an operator, before it runs (`out` is None) or after."""

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    out: Any
    device: torch.device
    stream: int
    capability: tuple[int, int]
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


# -- cuBLAS

CUBLAS_OPERATORS = (
    "aten::mm",
    "aten::mm_out",
    "aten::addmm",
    "aten::addmm_",
    "aten::bmm",
    "aten::baddbmm",
    "aten::baddbmm_",
    "aten::addbmm",
    "aten::mv",
    "aten::addmv",
    "aten::dot",
    "aten::vdot",
    "aten::_addmm_activation",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::linear",
)

_CUBLAS_SOURCE = "PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize and setWorkspaceForHandle"


def cublas_workspace_bytes(
    capability: tuple[int, int], environment: Mapping[str, str] = os.environ
) -> int:
    """Bytes of the workspace that PyTorch gives a cuBLAS handle.

    CUBLAS_WORKSPACE_CONFIG is a list of `:SIZE:COUNT` with SIZE in KiB; without it, 32 MiB on compute capabilities 9.x, 10.x
    and 12.x, else 4096 KiB x 2 + 16 KiB x 8 (PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize).
    cuBLASLt shares this workspace unless TORCH_CUBLASLT_UNIFIED_WORKSPACE=0 (same file, getCUDABlasLtWorkspace).
    """
    pairs = re.findall(r":(\d+):(\d+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) * 1024
    if capability[0] in (9, 10, 12):
        return 4096 * 8 * 1024
    return (4096 * 2 + 16 * 8) * 1024


def cublas_workspace(call: Call) -> Iterable[Workspace]:
    """One workspace for each handle and stream. A thread that uses cuBLAS has a handle of its own for each device."""
    thread = "backward" if call.in_backward else "main"
    return (
        Workspace(
            bytes=cublas_workspace_bytes(call.capability),
            name="cublas workspace",
            when="before",
            key=("cublas", call.device, thread, call.stream),
            evidence="source",
            source=_CUBLAS_SOURCE,
        ),
    )


def default_rules() -> WorkspaceRules:
    """The rules that hold for every PyTorch program."""
    rules = WorkspaceRules()
    rules.add(CUBLAS_OPERATORS, cublas_workspace)
    return rules


def make_call(
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    out: Any,
    device: torch.device,
    capability: tuple[int, int],
) -> Call:
    """Describes a call at this instant."""
    return Call(
        func=func,
        args=args,
        kwargs=kwargs,
        out=out,
        device=device,
        stream=current_stream_id(device.index or 0),
        capability=capability,
        in_backward=torch._C._current_graph_task_id() != -1,
    )
