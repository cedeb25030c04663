"""Token permutation of mixture-of-experts layers, sorting and padding. csrc/extensions/{permutation,padding,misc}.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.transformer_engine.quantizers import plain
from memtracker_sidecar.kernels.transformer_engine.table import TABLE

TABLE.no_allocation(
    "extensions/padding.cpp", "fused_multi_row_padding", "fused_multi_row_unpadding"
)


def radix_sort_storage(items: int) -> int:
    """Bytes of CUB's DeviceRadixSort::SortPairs for 32-bit keys and values without double buffers.

    The onesweep algorithm (CCCL, cub/device/dispatch/dispatch_radix_sort.cuh, InvokeOnesweep) keeps alternate copies of keys
    and values, 256 bins for each of 4 digit places, and look-back state of 256 words for each block of items.
    """
    bins = 4 * 256 * 8
    blocks = -(-max(items, 1) // 4096)
    return 2 * 4 * items + bins + blocks * 256 * 4


@TABLE.kernel(
    "extensions/permutation.cpp moe_permute_fwd",
    note="CUB temporary storage from its onesweep layout",
)
def moe_permute_fwd(
    input: torch.Tensor,
    dtype: Any,
    indices: torch.Tensor,
    num_out_tokens: int,
    workspace: list[torch.Tensor],
    max_expanded_token_num: int,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    tokens, columns = input.shape
    topk = indices.shape[1]
    device = input.device
    if not workspace:
        workspace = [
            plain([max_expanded_token_num], torch.int32, device),
            plain([max_expanded_token_num], torch.int32, device),
            plain([max_expanded_token_num], torch.int32, device),
            plain([radix_sort_storage(max_expanded_token_num)], torch.int8, device),
        ]
    out_tokens = num_out_tokens if num_out_tokens > 0 else tokens * topk
    permuted = plain([out_tokens, columns], input.dtype, device)
    row_id_map = plain([tokens * topk], torch.int32, device)
    return permuted, row_id_map, workspace


@TABLE.kernel(
    "extensions/permutation.cpp moe_unpermute_fwd", "moe_unpermute_fwd", "moe_permute_bwd"
)
def moe_unpermute_fwd(
    input: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
    num_tokens: int,
    topk: int,
) -> torch.Tensor:
    return plain([num_tokens, input.shape[1]], input.dtype, input.device)


@TABLE.kernel("extensions/permutation.cpp moe_unpermute_bwd")
def moe_unpermute_bwd(
    input_bwd: torch.Tensor,
    input_fwd: torch.Tensor,
    dtype: Any,
    row_id_map: torch.Tensor,
    prob: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, topk = (prob.shape[0], prob.shape[1]) if prob.numel() else (row_id_map.shape[0], 1)
    grad = plain([input_fwd.shape[0], input_bwd.shape[1]], input_bwd.dtype, input_bwd.device)
    return grad, plain([tokens, topk], torch.float32, input_bwd.device)


@TABLE.kernel("extensions/misc.cpp splits_to_offsets")
def splits_to_offsets(first_dims: torch.Tensor, logical_last_dim: int) -> torch.Tensor:
    first_dims = first_dims.contiguous()
    return plain([first_dims.numel() + 1], torch.int64, first_dims.device)


@TABLE.kernel("extensions/misc.cpp copy_data_ptrs_to_device")
def copy_data_ptrs_to_device(tensors: Sequence[torch.Tensor], device: Any) -> torch.Tensor:
    return plain([len(tensors)], torch.int64, device)
