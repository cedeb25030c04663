"""cuBLAS and cuBLASLt: one workspace for each handle and stream, kept until the process ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

import torch

from memtracker_sidecar.workspace_rules import Call, Workspace, WorkspaceRules

_SOURCE = "PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize and setWorkspaceForHandle"

_COPIES = "PyTorch, aten/src/ATen/native/cuda/cuBlasCommonArgs.h, prepare_matrix_for_cublas"

_OPERATORS = (
    "aten::mm",
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
    "aten::linear",
)


def workspace_bytes(
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


def _workspace(call: Call) -> Iterable[Workspace]:
    # A thread that uses cuBLAS has a handle of its own for each device, and the autograd engine has a thread for each device.
    thread = "backward" if call.in_backward else "main"
    return (
        Workspace(
            bytes=workspace_bytes(call.gpu.capability),
            name="cublas workspace",
            when="after",
            key=("cublas", call.device, thread, call.stream),
            source=_SOURCE,
        ),
    )


def _is_blas_layout(matrix: torch.Tensor) -> bool:
    """Whether cuBLAS can read a matrix as it is: one dimension dense, the other no closer than its length."""
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


def _copies(call: Call) -> Iterable[Workspace]:
    # A gradient that was expanded (the backward of sum()) has strides of 0.
    for matrix in call.args:
        if isinstance(matrix, torch.Tensor) and matrix.dim() >= 2 and not _is_blas_layout(matrix):
            size = matrix.numel() * matrix.element_size()
            yield Workspace(size, "contiguous copy for cublas", "after", _COPIES)


def register(rules: WorkspaceRules) -> None:
    rules.add(_OPERATORS, _workspace)
    rules.add(("aten::mm", "aten::bmm"), _copies)
