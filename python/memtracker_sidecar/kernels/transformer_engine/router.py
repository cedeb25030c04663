"""Fused top-k routing and auxiliary losses. csrc/extensions/router.cpp."""

from __future__ import annotations

from typing import Any

import torch

from memtracker_sidecar.kernels.transformer_engine.quantizers import ceil_div, plain
from memtracker_sidecar.kernels.transformer_engine.table import TABLE


def routing_map(shape: list[int], device: Any, map_format: int) -> torch.Tensor:
    """A byte for each token and expert, or a bit for each (allocate_routing_map)."""
    if int(map_format) == 1:
        return plain([*shape[:-1], ceil_div(shape[-1], 8)], torch.uint8, device)
    return plain(shape, torch.bool, device)


@TABLE.kernel("extensions/router.cpp fused_topk_with_score_function_fwd")
def fused_topk_with_score_function_fwd(
    logits: torch.Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: torch.Tensor | None,
    routing_map_format: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = list(logits.shape)
    probs = plain(shape, logits.dtype, logits.device)
    chosen = routing_map(shape, logits.device, routing_map_format)
    return probs, chosen, plain(shape, torch.float32, logits.device)


@TABLE.kernel("extensions/router.cpp fused_score_for_moe_aux_loss_fwd")
def fused_score_for_moe_aux_loss_fwd(
    logits: torch.Tensor, topk: int, score_function: str, routing_map_format: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = list(logits.shape)
    scores = plain(shape, torch.float32, logits.device)
    chosen = routing_map(shape, logits.device, routing_map_format)
    return scores, chosen, plain(shape, torch.float32, logits.device)


TABLE.no_allocation(
    "extensions/router.cpp",
    "fused_topk_with_score_function_bwd",
    "fused_score_for_moe_aux_loss_bwd",
)


@TABLE.kernel("extensions/router.cpp fused_moe_aux_loss_fwd")
def fused_moe_aux_loss_fwd(
    probs: torch.Tensor, tokens_per_expert: torch.Tensor, *_args: Any, **_kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return plain([], probs.dtype, probs.device), plain([2], torch.float32, probs.device)


@TABLE.kernel("extensions/router.cpp fused_moe_aux_loss_bwd")
def fused_moe_aux_loss_bwd(
    const_buf: torch.Tensor,
    tokens_per_expert: torch.Tensor,
    num_rows: int,
    num_cols: int,
    grad: torch.Tensor,
) -> torch.Tensor:
    return plain([num_rows, num_cols], grad.dtype, grad.device)
