"""FlashAttention 2: `flash_attn_2_cuda`, and its Python interface where the package is not installed.

flash-attention 2.7.4.post1 (the version in NVIDIA's PyTorch containers of 2025 and 2026), csrc/flash_attn/flash_api.cpp and
flash_attn/flash_attn_interface.py.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from memtracker_sidecar.kernels.extension import ExtensionModule, KernelTable
from memtracker_sidecar.kernels.packages import answer_version, installed, module

VERSION = "2.7.4.post1"
TABLE = KernelTable("flash_attn_2_cuda", f"flash-attention {VERSION} csrc/flash_attn")


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _head_rounded(width: int) -> int:
    return _round_up(width, 32) if width <= 192 else 256


def _empty(shape: list[int], dtype: torch.dtype, device: Any) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def splits(batch_heads_blocks: int, multiprocessors: int, key_blocks: int, most: int = 128) -> int:
    """num_splits_heuristic: how many parts the keys are cut into when too few blocks would fill the device."""
    if batch_heads_blocks >= 0.8 * multiprocessors:
        return 1
    most = min(most, multiprocessors, key_blocks)

    def eligible(count: int) -> bool:
        return count == 1 or -(-key_blocks // count) != -(-key_blocks // (count - 1))

    efficiency = {}
    for count in range(1, most + 1):
        if eligible(count):
            waves = batch_heads_blocks * count / multiprocessors
            efficiency[count] = waves / math.ceil(waves)
    best = max(efficiency.values(), default=0.0)
    return next((count for count, value in efficiency.items() if value >= 0.85 * best), 1)


def _split_buffers(
    batch: int, heads: int, width: int, keys: int, queries: int, dropout_p: float, device: Any
) -> list[torch.Tensor]:
    """set_params_splitkv: partial outputs and statistics, when the keys are split."""
    if dropout_p != 0.0:
        return []
    block = 256 if width <= 64 else 128 if width <= 128 else 64
    processors = int(torch.cuda.get_device_properties(0).multi_processor_count)
    count = splits(batch * heads * -(-queries // 64), processors * 2, -(-keys // block))
    if count <= 1:
        return []
    return [
        _empty([count, batch, heads, queries], torch.float32, device),
        _empty([count, batch, heads, queries, _head_rounded(width)], torch.float32, device),
    ]


@TABLE.kernel("flash_api.cpp mha_fwd")
def fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    return_softmax: bool,
    generator: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, queries, heads, width = q.shape
    keys = k.shape[1]
    out = torch.empty_like(q) if out is None else out
    lse = _empty([batch, heads, queries], torch.float32, q.device)
    p_shape = (
        [batch, heads, _round_up(queries, 128), _round_up(keys, 128)] if return_softmax else [0]
    )
    p = _empty(p_shape, q.dtype, q.device)
    held = _split_buffers(batch, heads, width, keys, queries, dropout_p, q.device)
    rng_state = _empty([2], torch.int64, q.device)
    del held
    return out, lse, p, rng_state


@TABLE.kernel("flash_api.cpp mha_varlen_fwd")
def varlen_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    total, heads, _ = q.shape
    out = torch.empty_like(q) if out is None else out
    lse = _empty([heads, total], torch.float32, q.device)
    return out, lse, _empty([0], q.dtype, q.device), _empty([2], torch.int64, q.device)


def _accumulators(
    sums: list[int],
    queries: list[int],
    expanded: list[int] | None,
    q: torch.Tensor,
    deterministic: bool,
    grid: int,
) -> torch.Tensor:
    """softmax_d, the fp32 dQ accumulator (one for each of several blocks when deterministic) and expanded dK, dV."""
    softmax_d = _empty(sums, torch.float32, q.device)
    if deterministic:
        processors = int(torch.cuda.get_device_properties(0).multi_processor_count)
        count = -(-processors // grid)
        accumulator = torch.zeros([count, *queries], dtype=torch.float32, device=q.device)
    else:
        accumulator = _empty(queries, torch.float32, q.device)
    wide = [_empty(expanded, q.dtype, q.device) for _ in range(2)] if expanded else []
    del accumulator, wide
    return softmax_d


@TABLE.kernel("flash_api.cpp mha_bwd")
def bwd(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    alibi_slopes: Any,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    deterministic: bool,
    generator: Any = None,
    rng_state: Any = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    batch, queries, heads, width = q.shape
    keys, kv_heads = k.shape[1], k.shape[2]
    dq = torch.empty_like(q) if dq is None else dq
    dk = torch.empty_like(k) if dk is None else dk
    dv = torch.empty_like(v) if dv is None else dv
    rounded = _round_up(queries, 128)
    softmax_d = _accumulators(
        [batch, heads, rounded],
        [batch, rounded, heads, _head_rounded(width)],
        [batch, keys, heads, width] if kv_heads != heads else None,
        q,
        deterministic,
        batch * heads,
    )
    return dq, dk, dv, softmax_d


@TABLE.kernel("flash_api.cpp mha_varlen_bwd")
def varlen_bwd(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    alibi_slopes: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    zero_tensors: bool,
    causal: bool,
    window_left: int,
    window_right: int,
    softcap: float,
    deterministic: bool,
    generator: Any = None,
    rng_state: Any = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    total, heads, width = q.shape
    batch = cu_seqlens_q.numel() - 1
    dq = torch.empty_like(q) if dq is None else dq
    dk = torch.empty_like(k) if dk is None else dk
    dv = torch.empty_like(v) if dv is None else dv
    padded = total + 128 * batch
    softmax_d = _accumulators(
        [heads, padded],
        [padded, heads, _head_rounded(width)],
        [k.shape[0], heads, width] if k.shape[1] != heads else None,
        q,
        deterministic,
        batch * heads,
    )
    return dq, dk, dv, softmax_d


# -- the Python interface


def _inner_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    return_softmax: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (_inner_contiguous(tensor) for tensor in (q, k, v))
    return TABLE.functions["fwd"](
        q, k, v, None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right,
        softcap, return_softmax, None,
    )  # fmt: skip


def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *rest: Any,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = (_inner_contiguous(tensor) for tensor in (q, k, v))
    return TABLE.functions["varlen_fwd"](q, k, v, None, cu_seqlens_q, cu_seqlens_k)


def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    rng_state: Any = None,
) -> torch.Tensor:
    dout, q, k, v, out = (_inner_contiguous(tensor) for tensor in (dout, q, k, v, out))
    return TABLE.functions["bwd"](
        dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale, causal,
        window_size_left, window_size_right, softcap, deterministic, None, rng_state,
    )[3]  # fmt: skip


def _flash_attn_varlen_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    rng_state: Any = None,
    zero_tensors: bool = False,
) -> torch.Tensor:
    dout, q, k, v, out = (_inner_contiguous(tensor) for tensor in (dout, q, k, v, out))
    return TABLE.functions["varlen_bwd"](
        dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q,
        max_seqlen_k, dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right,
        softcap, deterministic, None, rng_state,
    )[3]  # fmt: skip


def _padded(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Head width padded to a multiple of eight, as the kernels want it."""
    return torch.nn.functional.pad(tensor, [0, 8 - width % 8]) if width % 8 else tensor


class FlashAttnFunc(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Any,
        k: Any,
        v: Any,
        dropout_p: float,
        scale: float,
        causal: bool,
        window: Any,
        deterministic: bool,
    ) -> torch.Tensor:
        width = q.shape[3]
        q, k, v = (_padded(tensor, width) for tensor in (q, k, v))
        out, lse, _p, rng_state = _flash_attn_forward(q, k, v, dropout_p, scale, causal)
        ctx.save_for_backward(q, k, v, out, lse, rng_state)
        ctx.options = (dropout_p, scale, causal, deterministic)
        return out[..., :width]

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse, rng_state = ctx.saved_tensors
        dropout_p, scale, causal, deterministic = ctx.options
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        padded = _padded(dout, dout.shape[3])
        _flash_attn_backward(
            padded,
            q,
            k,
            v,
            out,
            lse,
            dq,
            dk,
            dv,
            dropout_p,
            scale,
            causal,
            deterministic=deterministic,
            rng_state=rng_state,
        )
        width = dout.shape[-1]
        return dq[..., :width], dk[..., :width], dv[..., :width], None, None, None, None, None


class FlashAttnVarlenFunc(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, dropout_p: float, scale: float, causal: bool,
        deterministic: bool,
    ) -> torch.Tensor:  # fmt: skip
        width = q.shape[2]
        q, k, v = (_padded(tensor, width) for tensor in (q, k, v))
        out, lse, _p, rng_state = _flash_attn_varlen_forward(q, k, v, cu_q, cu_k)
        ctx.save_for_backward(q, k, v, out, lse, cu_q, cu_k, rng_state)
        ctx.options = (max_q, max_k, dropout_p, scale, causal, deterministic)
        return out[..., :width]

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, out, lse, cu_q, cu_k, rng_state = ctx.saved_tensors
        max_q, max_k, dropout_p, scale, causal, deterministic = ctx.options
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        padded = _padded(dout, dout.shape[2])
        _flash_attn_varlen_backward(
            padded, q, k, v, out, lse, dq, dk, dv, cu_q, cu_k, max_q, max_k, dropout_p, scale, causal,
            deterministic=deterministic, rng_state=rng_state,
        )  # fmt: skip
        width = dout.shape[-1]
        return (dq[..., :width], dk[..., :width], dv[..., :width], *([None] * 8))


def flash_attn_func(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: Any = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    scale = softmax_scale or q.shape[-1] ** -0.5
    return FlashAttnFunc.apply(q, k, v, dropout_p, scale, causal, window_size, deterministic)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, window_size: Any = (-1, -1), softcap: float = 0.0,
    alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False, block_table: Any = None,
) -> Any:  # fmt: skip
    scale = softmax_scale or q.shape[-1] ** -0.5
    return FlashAttnVarlenFunc.apply(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        scale,
        causal,
        deterministic,
    )


INTERFACE = {
    function.__name__: function
    for function in (
        _flash_attn_forward,
        _flash_attn_backward,
        _flash_attn_varlen_forward,
        _flash_attn_varlen_backward,
        flash_attn_func,
        flash_attn_varlen_func,
    )
}


def install() -> bool:
    """Puts the compiled module in place, and the package where it is not installed. True when the package is ours."""
    module("flash_attn_2_cuda", instead=ExtensionModule("flash_attn_2_cuda", TABLE))
    if installed("flash_attn"):
        return False
    answer_version("flash-attn", VERSION)
    interface = ExtensionModule("flash_attn.flash_attn_interface", None, **INTERFACE)
    module(
        "flash_attn",
        {
            "__version__": VERSION,
            **INTERFACE,
            "flash_attn_with_kvcache": interface.flash_attn_with_kvcache,
        },
    )
    module("flash_attn.flash_attn_interface", instead=interface)
    return True
