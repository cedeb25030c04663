"""sort and argsort: positions, and the double buffers of CUB's radix sort."""

from __future__ import annotations

from collections.abc import Iterable

from memtracker_sidecar.workspace_rules import Call, Workspace, WorkspaceRules, argument

_SOURCE = "PyTorch, aten/src/ATen/native/cuda/Sort.cpp and Sort.cu; CUB DeviceRadixSort"
_SMALL = 4096  # Sort.cpp, should_use_small_sort: rows that one block sorts in place
_INDEX = 8


def _sort(call: Call) -> Iterable[Workspace]:
    tensor = call.args[0]
    if tensor.dim() == 0 or tensor.numel() == 0:
        return
    dim = int(argument(call, "dim", -1))
    row, count, item = tensor.shape[dim], tensor.numel(), tensor.element_size()
    if row <= 1024 or (row <= _SMALL and count // row > 1):
        yield Workspace(row * _INDEX, "sort positions", "after", _SOURCE)
        return
    yield Workspace(count * _INDEX, "sort positions", "after", _SOURCE)
    if (
        count > row
    ):  # rows are sorted together: pairs of segment and index, and a copy of the values
        yield Workspace(count * _INDEX, "sort segments", "after", _SOURCE)
        yield Workspace(count * item, "sort values", "after", _SOURCE)
    yield Workspace(count * (item + _INDEX), "radix sort buffers", "after", _SOURCE)


def register(rules: WorkspaceRules) -> None:
    rules.add(("aten::sort",), _sort)
