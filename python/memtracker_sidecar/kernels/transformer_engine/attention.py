"""cuDNN fused attention and the layout kernels around it: outputs, softmax statistics, random state, workspaces.

csrc/extensions/attention.cpp, common/fused_attn/{fused_attn.cpp,fused_attn_f16_arbitrary_seqlen.cu}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.extension import assume
from memtracker_sidecar.kernels.transformer_engine.earlier_releases import (
    callable_by_earlier_releases,
    instead,
    without,
)
from memtracker_sidecar.kernels.transformer_engine.enums import (
    NVTE_Bias_Type,
    NVTE_Fused_Attn_Backend,
    NVTE_Mask_Type,
    NVTE_QKV_Format,
    NVTE_QKV_Layout,
    NVTE_Softmax_Type,
)
from memtracker_sidecar.kernels.transformer_engine.quantizers import (
    CURRENT,
    create,
    kind_of,
    logical_shape,
    plain,
    unquantized_with_amax,
)
from memtracker_sidecar.kernels.transformer_engine.table import TABLE, compute_capability

CUDNN_VERSION = 92400  # the cuDNN that torch 2.14.1+cu130 is built with: 9.24

# Where the inner "2" or "3" stands in a packed layout, counted from the end of the shape with it inserted.
PACKED = {"3HD": -3, "H3D": -2, "2HD": -3, "H2D": -2}


def layout_name(layout: Any) -> str:
    return NVTE_QKV_Layout(int(layout)).name.removeprefix("NVTE_")


def query_format(layout: Any) -> str:
    """nvte_get_q_format: sbhd, bshd, thd or bhsd."""
    name = layout_name(layout).removeprefix("Paged_KV_").split("_")[0]
    return name.replace("3", "").replace("2", "").lower()


def dimensions(tensor: Any, layout_format: str) -> tuple[int, int, int, int]:
    """(batch, sequence or tokens, heads, width); batch is 1 for thd."""
    shape = logical_shape(tensor)
    if layout_format == "thd":
        return 1, shape[0], shape[1], shape[2]
    if layout_format == "sbhd":
        return shape[1], shape[0], shape[2], shape[3]
    if layout_format == "bhsd":
        return shape[0], shape[2], shape[1], shape[3]
    return shape[0], shape[1], shape[2], shape[3]


@TABLE.kernel("common/fused_attn/fused_attn.cpp nvte_get_fused_attn_backend, for cuDNN 9.24")
def get_fused_attn_backend(
    is_training: bool,
    q_dtype: Any,
    kv_dtype: Any,
    qkv_layout: Any,
    bias_type: Any,
    attn_mask_type: Any,
    softmax_type: Any,
    p_dropout: float,
    num_attn_heads: int,
    num_gqa_groups: int,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    head_dim_qk: int,
    head_dim_v: int,
    window_size_left: int = -1,
    window_size_right: int = -1,
    return_max_logit: bool = False,
    cuda_graph: bool = False,
    deterministic: bool = False,
) -> Any:
    """The conditions of the source that depend on the device and the shapes, with the cuDNN version put in."""
    arch = compute_capability()
    none = NVTE_Fused_Attn_Backend.NVTE_No_Backend
    layout_format = layout_name(qkv_layout)
    thd = "T" in layout_format.split("_")[0]
    mask = NVTE_Mask_Type(int(attn_mask_type))
    bias = NVTE_Bias_Type(int(bias_type))
    if int(q_dtype) in (7, 8):
        width = (
            (arch < 100 and not is_training and head_dim_qk <= 256 and head_dim_v <= 256)
            or (arch < 100 and is_training and head_dim_qk == head_dim_v == 128)
            or (arch >= 100 and head_dim_qk <= 192 and head_dim_v <= 128)
        )
        multiples = head_dim_qk % 16 == 0 and head_dim_v % 16 == 0
        if arch >= 90 and bias == 0 and width and multiples and not thd and not return_max_logit:
            return NVTE_Fused_Attn_Backend.NVTE_FP8
        return none
    if int(q_dtype) not in (5, 6) or arch < 80:
        return none
    small = head_dim_qk <= 128 and head_dim_v <= 128
    hopper = head_dim_qk <= 256 and head_dim_v <= 256 and arch == 90
    mla = head_dim_qk == 192 and head_dim_v == 128 and arch >= 100
    inference = not is_training and max_seqlen_q > 1
    hopper_bug = (
        is_training
        and arch == 90
        and head_dim_qk >= 128
        and head_dim_v >= 128
        and head_dim_qk != head_dim_v
        and not (head_dim_qk == 192 and head_dim_v == 128)
    )
    if head_dim_qk % 8 or head_dim_v % 8 or not (small or hopper or mla or inference) or hopper_bug:
        return none
    padded = mask in (
        NVTE_Mask_Type.NVTE_PADDING_MASK,
        NVTE_Mask_Type.NVTE_PADDING_CAUSAL_MASK,
        NVTE_Mask_Type.NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK,
    )
    if bias == NVTE_Bias_Type.NVTE_PRE_SCALE_BIAS or (
        padded and bias == NVTE_Bias_Type.NVTE_POST_SCALE_BIAS
    ):
        return none
    if bias == NVTE_Bias_Type.NVTE_ALIBI and (padded or mask == 0 or arch < 90):
        return none
    if thd and (arch < 90 or not padded):
        return none
    full_window = window_size_left == -1 and window_size_right in (-1, 0)
    if not full_window and (bias != 0 or p_dropout != 0.0 or max_seqlen_q > max_seqlen_kv):
        return none
    if arch >= 100 and is_training:
        if deterministic and (p_dropout != 0.0 or bias != 0):
            return none
        if not deterministic and p_dropout != 0.0 and bias != 0:
            return none
    if arch == 120 and ((deterministic and is_training) or layout_format in ("T3HD", "TH3D")):
        return none
    return NVTE_Fused_Attn_Backend.NVTE_F16_arbitrary_seqlen


def _with_quantizer(
    quantizer: Any, shape: list[int], dtype: torch.dtype, device: Any, data: Any = None
) -> Any:
    """quantizer_helper(..., create_hp_tensor=true): current scaling and MXFP8 keep high precision here."""
    kind = kind_of(quantizer)
    if kind == CURRENT:
        return unquantized_with_amax(shape, dtype, device)[0] if data is None else data
    if kind == "MXFP8Quantizer":
        return plain(shape, dtype, device) if data is None else data
    return create(quantizer, shape, dtype, device, data=data)


def _convert(shape: list[int], source: str, target: str) -> list[int]:
    """AttentionShape::to_format."""
    if source == target or "t" in (source[0], target[0]):
        return shape
    sizes = dict(zip(source, shape, strict=True))
    return [sizes[axis] for axis in target]


@TABLE.kernel(
    "extensions/attention.cpp fused_attn_fwd",
    note="cuDNN's plan workspace in the forward pass taken as none",
)
@callable_by_earlier_releases(
    without("o_format", "qkv_scale_inv_format"),  # 2.15
    without("bottom_right_diagonal"),  # 2.13
    without("cuda_graph"),  # 2.10
    without("return_max_logit"),  # 2.9
    without("softmax_type", "softmax_offset"),  # 2.8
    o_format=None,
    qkv_scale_inv_format=None,
    bottom_right_diagonal=True,
    cuda_graph=False,
    return_max_logit=False,
    softmax_type=NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX,
    softmax_offset=None,
)
def fused_attn_fwd(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    is_training: bool,
    attn_scale: float,
    p_dropout: float,
    set_zero: bool,
    qkv_layout: Any,
    o_format: Any,
    qkv_scale_inv_format: Any,
    bias_type: Any,
    attn_mask_type: Any,
    softmax_type: Any,
    window_size: Sequence[int],
    bottom_right_diagonal: bool,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    q: Any,
    k: Any,
    v: Any,
    fake_dtype: torch.dtype,
    cu_seqlens_q_padded: torch.Tensor | None,
    cu_seqlens_kv_padded: torch.Tensor | None,
    page_table_k: torch.Tensor | None,
    page_table_v: torch.Tensor | None,
    s_quantizer: Any,
    o_quantizer: Any,
    bias: torch.Tensor | None,
    softmax_offset: torch.Tensor | None,
    rng_gen: Any,
    rng_elts_per_thread: int,
    return_max_logit: bool,
    cuda_graph: bool,
) -> list[Any]:
    device = q.device
    source = query_format(qkv_layout)
    target = (
        source
        if o_format is None
        else NVTE_QKV_Format(int(o_format)).name.removeprefix("NVTE_").lower()
    )
    shape = _convert([*logical_shape(q)[:-1], logical_shape(v)[-1]], source, target)
    out = _with_quantizer(o_quantizer, shape, fake_dtype, device)
    rng_state = plain([2], torch.int64, device)
    batch, sequence, heads, _ = dimensions(q, source)
    padded = int(attn_mask_type) in (1, 3, 5)
    workspace = plain([2 * 4 * batch if padded else 1], torch.uint8, device)
    stats_shape = [sequence, heads, 1] if source == "thd" else [batch, heads, max_seqlen_q, 1]
    outputs: list[Any] = [out, plain(stats_shape, torch.float32, device)]
    if return_max_logit:
        outputs.append(plain(stats_shape, torch.float32, device))
    outputs.append(rng_state)
    if bias is not None and int(bias_type) in (1, 2):
        outputs.append(bias)
    if softmax_offset is not None and int(softmax_type) != NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX:
        outputs.append(softmax_offset)
    del workspace
    return outputs


@TABLE.kernel(
    "extensions/attention.cpp fused_attn_bwd",
    evidence="assumed",
    note="cuDNN's workspace: fp32 dQ accumulator and softmax sums, as in cudnn-frontend's SDPA backward graph",
)
@callable_by_earlier_releases(
    instead(  # 2.15
        (
            "o_format",
            "do_format",
            "dqkv_layout",
            "qkv_scale_inv_format",
            "do_scale_inv_format",
        ),
        "dqkv_type",
        after="fake_dtype",
    ),
    without("bottom_right_diagonal"),  # 2.13
    without("cuda_graph"),  # 2.10
    without("softmax_type"),  # 2.8
    o_format=None,
    do_format=None,
    dqkv_layout=None,
    qkv_scale_inv_format=None,
    do_scale_inv_format=None,
    bottom_right_diagonal=True,
    cuda_graph=False,
    softmax_type=NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX,
)
def fused_attn_bwd(
    max_seqlen_q: int,
    max_seqlen_kv: int,
    attn_scale: float,
    p_dropout: float,
    set_zero: bool,
    qkv_layout: Any,
    o_format: Any,
    do_format: Any,
    dqkv_layout: Any,
    qkv_scale_inv_format: Any,
    do_scale_inv_format: Any,
    bias_type: Any,
    attn_mask_type: Any,
    softmax_type: Any,
    window_size: Sequence[int],
    bottom_right_diagonal: bool,
    deterministic: bool,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    d_o: Any,
    fake_dtype: torch.dtype,
    aux: Sequence[torch.Tensor],
    cu_seqlens_q_padded: torch.Tensor | None,
    cu_seqlens_kv_padded: torch.Tensor | None,
    s_quantizer: Any,
    dp_quantizer: Any,
    dqkv_quantizer: Any,
    cuda_graph: bool,
) -> list[Any]:
    device = q.device
    # With a delayed-scaling quantizer the gradients themselves are FP8 (csrc: options.dtype of the quantizer).
    dtype = torch.uint8 if kind_of(dqkv_quantizer) == "Float8Quantizer" else fake_dtype
    q_shape, k_shape, v_shape = logical_shape(q), logical_shape(k), logical_shape(v)
    name = layout_name(qkv_layout if dqkv_layout is None else dqkv_layout)
    packed = next((key for key in PACKED if key in name), None)
    if packed in ("3HD", "H3D"):
        dq, dk, dv = _unpack(q_shape, 3, PACKED[packed], dtype, device)
    elif packed is not None:
        dq = plain(q_shape, dtype, device)
        dk, dv = _unpack(k_shape, 2, PACKED[packed], dtype, device)
    else:
        dq, dk, dv = (plain(shape, dtype, device) for shape in (q_shape, k_shape, v_shape))
    grads = [
        _with_quantizer(dqkv_quantizer, shape, fake_dtype, device, data)
        for shape, data in ((q_shape, dq), (k_shape, dk), (v_shape, dv))
    ]
    d_bias = None
    if int(bias_type) in (1, 2):
        batch_shape = (
            list(aux[-1].shape) if len(aux) >= 2 else [1, q_shape[-2], max_seqlen_q, max_seqlen_kv]
        )
        d_bias = plain(batch_shape, fake_dtype, device)
    d_offset = None
    if int(softmax_type) != NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX:
        d_offset = plain([1, q_shape[-2], 1, 1], torch.float32, device)
    backward_workspace(q, k, query_format(qkv_layout), max_seqlen_q, max_seqlen_kv, device)
    return [*grads, d_bias, d_offset]


def backward_workspace(
    q: Any, k: Any, layout_format: str, max_seqlen_q: int, max_seqlen_kv: int, device: Any
) -> None:
    """cuDNN's flash backward: softmax_sum [b, h, sq] fp32, dQ accumulator [b, h, sq, d] fp32, and with grouped queries
    expanded dK and dV [b, h, skv, d] in the gradients' dtype. cudnn-frontend 1.x, node/scaled_dot_product_flash_attention.h,
    SDPABackwardNode::collect_workspace; the part of cuDNN's own kernel below it is not known.
    """
    batch, sequence, heads, width = dimensions(q, layout_format)
    _, kv_sequence, kv_heads, _ = dimensions(k, layout_format)
    rows = batch * heads * sequence
    size = rows * 4 + rows * width * 4
    if kv_heads != heads:
        size += 2 * batch * heads * kv_sequence * width * 2
    assume(
        "transformer_engine_torch.fused_attn_bwd_workspace",
        "cuDNN's backward workspace: fp32 dQ accumulator and softmax sums",
        size,
    )
    plain([size], torch.uint8, device)


def _unpack(
    shape: list[int], parts: int, position: int, dtype: torch.dtype, device: Any
) -> list[torch.Tensor]:
    """One buffer for the packed gradients, and its views."""
    whole = list(shape)
    index = len(whole) + 1 + position
    whole.insert(index, parts)
    buffer = plain(whole, dtype, device)
    return [buffer.select(index, part) for part in range(parts)]


@TABLE.kernel("extensions/attention.cpp fa_prepare_fwd")
def fa_prepare_fwd(qkvi: torch.Tensor) -> torch.Tensor:
    s, b, n, h = qkvi.shape
    return plain([3, b, s, n, h], qkvi.dtype, qkvi.device)


@TABLE.kernel("extensions/attention.cpp fa_prepare_bwd")
def fa_prepare_bwd(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    s, b, n, h = q.shape
    return plain([b, s, n, 3 * h], q.dtype, q.device)


@TABLE.kernel("extensions/attention.cpp multi_tensor_transpose_to_bhsd")
def multi_tensor_transpose_to_bhsd(
    inputs: Sequence[torch.Tensor | None],
    original_format: str,
    outputs: Sequence[torch.Tensor | None] = (),
) -> list[torch.Tensor | None]:
    results: list[torch.Tensor | None] = []
    for i, tensor in enumerate(inputs):
        if tensor is None or (i < len(outputs) and outputs[i] is not None):
            results.append(None if tensor is None else outputs[i])
            continue
        source = tensor.contiguous()
        shape = _convert(list(source.shape), original_format, "bhsd")
        results.append(plain(shape, source.dtype, source.device))
    return results


@TABLE.kernel("extensions/attention.cpp convert_thd_to_bshd")
def convert_thd_to_bshd(
    tensor: torch.Tensor, cu_seqlens: torch.Tensor, b: int, max_seq_len: int
) -> torch.Tensor:
    return plain([b, max_seq_len, *tensor.shape[1:]], tensor.dtype, tensor.device)


@TABLE.kernel("extensions/attention.cpp convert_bshd_to_thd")
def convert_bshd_to_thd(tensor: torch.Tensor, cu_seqlens: torch.Tensor, t: int) -> torch.Tensor:
    return plain([t, *tensor.shape[2:]], tensor.dtype, tensor.device)


@TABLE.kernel("extensions/attention.cpp thd_get_partitioned_indices")
def thd_get_partitioned_indices(
    cu_seqlens: torch.Tensor, total_tokens: int, world_size: int, rank: int
) -> torch.Tensor:
    return torch.empty(
        [int(total_tokens) // world_size], dtype=torch.int32, device=cu_seqlens.device
    )


@TABLE.kernel("extensions/attention.cpp thd_read_half_tensor")
def thd_read_half_tensor(
    tensor: torch.Tensor, cu_seqlens: torch.Tensor, half_idx: int
) -> torch.Tensor:
    """Tokens are the first dimension of q and the second of packed k/v."""
    shape = list(tensor.shape)
    shape[0 if len(shape) == 3 else 1] //= 2
    return plain(shape, tensor.dtype, tensor.device)


@TABLE.kernel("extensions/attention.cpp thd_read_second_half_lse")
def thd_read_second_half_lse(
    lse: torch.Tensor, cu_seqlens: torch.Tensor, lse_packed: bool, second_half_lse_seqlen: int
) -> torch.Tensor:
    return plain([*lse.shape[:-1], second_half_lse_seqlen], lse.dtype, lse.device)


TABLE.no_allocation(
    "extensions/attention.cpp",
    "thd_second_half_lse_correction",
    "thd_out_correction",
    "thd_grad_correction",
    "copy_to_kv_cache",
)
