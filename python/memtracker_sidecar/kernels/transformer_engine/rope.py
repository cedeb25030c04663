"""Rotary embeddings: one output like the input; the fused q/k/v variant splits first. csrc/extensions/apply_rope.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.transformer_engine.quantizers import plain
from memtracker_sidecar.kernels.transformer_engine.table import TABLE


@TABLE.kernel("extensions/apply_rope.cpp", "fused_rope_forward", "fused_rope_backward")
def rotate(tensor: torch.Tensor, freqs: torch.Tensor, *_args: Any) -> torch.Tensor:
    return plain(list(tensor.shape), tensor.dtype, tensor.device)


@TABLE.kernel("extensions/apply_rope.cpp fused_qkv_rope_forward")
def fused_qkv_rope_forward(
    qkv: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    start_positions: Any,
    split: Sequence[int],
    *_args: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Last dimension is split q | k | v; q is unfolded to as many heads of k's width as it holds."""
    shape = list(qkv.shape)
    q = [*shape[:2], shape[2] * split[0] // split[1], split[1]]
    k, v = [*shape[:3], split[1]], [*shape[:3], split[2]]
    return (
        plain(q, qkv.dtype, qkv.device),
        plain(k, qkv.dtype, qkv.device),
        plain(v, qkv.dtype, qkv.device),
    )


@TABLE.kernel("extensions/apply_rope.cpp fused_qkv_rope_backward")
def fused_qkv_rope_backward(
    q_grad: torch.Tensor,
    k_grad: torch.Tensor,
    v_grad: torch.Tensor,
    q_freqs: torch.Tensor,
    k_freqs: torch.Tensor,
    split: Sequence[int],
    *_args: Any,
) -> torch.Tensor:
    return plain([*k_grad.shape[:3], sum(split)], q_grad.dtype, q_grad.device)
