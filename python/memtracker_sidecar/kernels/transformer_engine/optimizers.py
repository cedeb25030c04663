"""Multi-tensor kernels of the fused optimizers: in place, but for the norms. csrc/extensions/multi_tensor/*.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.transformer_engine.quantizers import ceil_div, plain
from memtracker_sidecar.kernels.transformer_engine.table import TABLE

TABLE.no_allocation(
    "extensions/multi_tensor/{adam,sgd,scale,compute_scale}.cpp",
    "multi_tensor_adam",
    "multi_tensor_adam_param_remainder",
    "multi_tensor_adam_fp8",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_sgd",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_compute_scale_and_scale_inv",
    "multi_tensor_compute_scale_inv_e8m0",
)


def l2norm(
    chunk_size: int, tensor_lists: Sequence[Sequence[torch.Tensor]], per_tensor: bool | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """320 partial sums and one result; per tensor: a sum for each chunk of the largest tensor, and one result each."""
    tensors = tensor_lists[0]
    device = tensors[0].device
    partial = torch.zeros(320, dtype=torch.float32, device=device)
    result = plain([1], torch.float32, device)
    if per_tensor:
        chunks = max(ceil_div(tensor.numel(), chunk_size) for tensor in tensors)
        partial_per_tensor = torch.zeros(len(tensors) * chunks, dtype=torch.float32, device=device)
        result_per_tensor = plain([len(tensors)], torch.float32, device)
        del partial_per_tensor
    else:
        result_per_tensor = plain([0], torch.float32, device)
    del partial
    return result, result_per_tensor


@TABLE.kernel("extensions/multi_tensor/l2norm.cpp multi_tensor_l2norm_cuda")
def multi_tensor_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Sequence[torch.Tensor]],
    per_tensor: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return l2norm(chunk_size, tensor_lists, per_tensor)


@TABLE.kernel("extensions/multi_tensor/l2norm.cpp multi_tensor_unscale_l2norm_cuda")
def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Sequence[torch.Tensor]],
    inv_scale: torch.Tensor,
    per_tensor: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return l2norm(chunk_size, tensor_lists, per_tensor)


@TABLE.kernel(
    "extensions/newton_schulz.cpp newton_schulz",
    evidence="assumed",
    note="cuSOLVERMp workspace not known",
)
def newton_schulz(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> None:
    return None
