"""Operators on lists of tensors."""

from __future__ import annotations

from collections.abc import Iterable

from memtracker_sidecar.workspace_rules import Call, Workspace, WorkspaceRules

_NORM = "PyTorch, aten/src/ATen/native/cuda/ForeachReduceOp.cu, foreach_tensor_norm_cuda"
_CHUNK = 65536  # MultiTensorApply.cuh, kChunkSize


def _norm(call: Call) -> Iterable[Workspace]:
    tensors = call.args[0]
    if not tensors:
        return ()
    chunks = max(-(-tensor.numel() // _CHUNK) for tensor in tensors)
    item = max(4, tensors[0].element_size())
    return (Workspace(len(tensors) * chunks * item, "norms of chunks", "before", _NORM),)


def register(rules: WorkspaceRules) -> None:
    rules.add(("aten::_foreach_norm",), _norm)
