"""Matrix products: outputs, bias gradients, gelu inputs, unquantized copies, swizzled scales. cuBLAS workspaces are the caller's.

csrc/extensions/gemm.cpp and csrc/extensions/swizzle.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.transformer_engine.enums import torch_dtype
from memtracker_sidecar.kernels.transformer_engine.quantizers import (
    DELAYED,
    ceil_div,
    create,
    kind_of,
    logical_shape,
    matrix_dims,
    plain,
    round_up,
    run_quantize,
)
from memtracker_sidecar.kernels.transformer_engine.table import TABLE, compute_capability


def output_shape(a: Sequence[int], transa: bool, b: Sequence[int], transb: bool) -> list[int]:
    """detail::getGemmOutputShape without tensor-parallel overlap: B's outer dimensions, then A's free dimension."""
    a_rows, a_columns = matrix_dims(a)
    outer = [matrix_dims(b)[1]] if transb else list(b[:-1])
    return [*outer, a_rows if transa else a_columns]


def swizzled_scales(tensor: Any, rowwise: bool) -> torch.Tensor | None:
    """swizzle_scales_for_gemm (MXFP8, NVFP4), convert_block_scaling_to_mxfp8_tensor (FP8 blocks on Blackwell): alive during the GEMM."""
    scales = getattr(tensor, "_rowwise_scale_inv" if rowwise else "_columnwise_scale_inv", None)
    if scales is None:
        return None
    name = type(tensor).__name__
    if name.startswith(("MXFP8", "NVFP4")):
        if getattr(tensor, "_with_gemm_swizzled_scales", False):
            return None
        return plain(list(scales.shape), torch.uint8, scales.device)
    if name.startswith("Float8Blockwise") and compute_capability() >= 100:
        data = tensor._rowwise_data if rowwise else tensor._columnwise_data
        rows, columns = matrix_dims(list(data.shape))
        shape = [round_up(rows, 128), round_up(ceil_div(columns, 32), 4)]
        return plain(shape, torch.uint8, data.device)
    return None


def is_float8(tensor: Any) -> bool:
    return type(tensor).__name__ in ("Float8Tensor", "Float8TensorStorage")


@TABLE.kernel("extensions/gemm.cpp gemm")
def generic_gemm(
    a: Any,
    transa: bool,
    b: Any,
    transb: bool,
    d: Any,
    quantizer: Any,
    out_dtype: Any,
    bias: torch.Tensor | None,
    bias_type: Any,
    gelu: bool,
    gelu_in: torch.Tensor | None,
    grad: bool,
    workspace: torch.Tensor,
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    comm_overlap: Any = None,
    comm_type: Any = None,
    extra_output: torch.Tensor | None = None,
    bulk_overlap: bool = False,
    alpha: float = 1.0,
    beta: float | None = None,
) -> list[Any]:
    device = a.device
    b_shape = logical_shape(b)
    shape = output_shape(logical_shape(a), transa, b_shape, transb)
    dtype = torch_dtype(out_dtype) if out_dtype is not None else a.dtype
    if d is None:
        d = create(quantizer, shape, dtype, device)
    unquantized = None
    if quantizer is not None:
        low_precision = is_float8(a) or is_float8(b)
        if not (kind_of(quantizer) == DELAYED and low_precision):
            unquantized = plain(shape, dtype, device)
    bias_grad = None
    if bias is not None:
        if grad:
            bias_grad = plain([b_shape[-1]], dtype, device)
        else:
            bias = bias.contiguous()
    pre_gelu = plain(shape, dtype, device) if gelu and not grad else None
    if math.prod(logical_shape(a)) and math.prod(b_shape):
        swizzled = [swizzled_scales(a, transa), swizzled_scales(b, not transb)]
        del swizzled
    if unquantized is not None:
        run_quantize(quantizer, device, shape, dtype)
    return [d, bias_grad, pre_gelu, extra_output]


@TABLE.kernel("extensions/gemm.cpp te_general_grouped_gemm")
def te_general_grouped_gemm(
    a: Sequence[Any],
    transa: bool,
    b: Sequence[Any],
    transb: bool,
    d: Sequence[torch.Tensor] | None,
    d_type: Any,
    m_splits: Sequence[int],
    bias: Sequence[torch.Tensor],
    bias_type: Any,
    single_output: bool,
    pre_gelu_out: Sequence[torch.Tensor],
    grad: bool,
    workspace: Sequence[torch.Tensor],
    workspace_size: int,
    accumulate: bool,
    use_split_accumulator: bool,
    math_sm_count: int,
) -> Sequence[torch.Tensor]:
    outputs = []
    if d is None:
        for left, right in zip(a, b, strict=True):
            shape = output_shape(logical_shape(left), transa, logical_shape(right), transb)
            outputs.append(plain(shape, torch_dtype(d_type), left.device))
    swizzled = []
    for tensors, rowwise in ((a, transa), (b, not transb)):
        if tensors and type(tensors[0]).__name__.startswith(("MXFP8", "NVFP4")):
            swizzled.append(_one_buffer_of_scales(tensors, rowwise))
        else:
            swizzled.extend(swizzled_scales(tensor, rowwise) for tensor in tensors)
    del outputs, swizzled
    return bias


def _one_buffer_of_scales(tensors: Sequence[Any], rowwise: bool) -> torch.Tensor | None:
    """swizzle.cpp multi_tensor_swizzle_scales_for_gemm_impl: scales that are not swizzled yet, each aligned to 16 B."""
    size = 0
    device = None
    for tensor in tensors:
        if getattr(tensor, "_with_gemm_swizzled_scales", False):
            continue
        scales = getattr(tensor, "_rowwise_scale_inv" if rowwise else "_columnwise_scale_inv", None)
        if scales is None:
            continue
        device = scales.device
        size = round_up(size, 16) + scales.numel()
    return plain([size], torch.uint8, device) if device is not None else None


@TABLE.kernel("extensions/swizzle.cpp inplace_swizzle_scale_for_gemm")
def swizzle_scales_for_gemm_(tensor: Any) -> None:
    for rowwise in (True, False):
        swizzled = swizzled_scales(tensor, rowwise)
        if swizzled is not None:
            setattr(tensor, "_rowwise_scale_inv" if rowwise else "_columnwise_scale_inv", swizzled)
    if hasattr(tensor, "_with_gemm_swizzled_scales"):
        tensor._with_gemm_swizzled_scales = True


@TABLE.kernel(
    "common/gemm/cublaslt_grouped_gemm.cu nvte_get_grouped_gemm_setup_workspace_size",
    evidence="assumed",
    note="pointers and sizes of each group: taken as 1 KiB a group",
)
def get_grouped_gemm_setup_workspace_size(num_tensors: int) -> int:
    return max(1, num_tensors) * 1024
