"""LayerNorm and RMSNorm: outputs, statistics, and the partial-sum workspaces of the backward kernels.

csrc/extensions/normalization.cpp; workspaces: common/normalization/{layernorm,rmsnorm}/*_bwd_semi_cuda_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch

from memtracker_sidecar.kernels.extension import assume
from memtracker_sidecar.kernels.transformer_engine.enums import torch_dtype
from memtracker_sidecar.kernels.transformer_engine.quantizers import (
    CURRENT,
    DELAYED,
    ceil_div,
    create,
    kind_of,
    logical_shape,
    matrix_dims,
    plain,
    round_up,
    run_quantize,
    run_quantize_with_amax,
    unquantized_with_amax,
)
from memtracker_sidecar.kernels.transformer_engine.table import TABLE, multiprocessors

# Hidden sizes with a tuned backward kernel, and its CTAs a row (ln_bwd_semi_cuda_kernel.cu, rmsnorm_bwd_semi_cuda_kernel.cu,
# REGISTER_NORM_LAUNCHER rows for bf16).
LAYERNORM_TUNED = {
    768: 1, 1024: 1, 1536: 1, 2048: 1, 2304: 1, 3072: 1, 3840: 1, 4096: 1, 5120: 1, 6144: 1, 8192: 2, 10240: 2,
    12288: 4, 12800: 5, 15360: 4, 16384: 4, 18432: 4, 20480: 4, 24576: 4, 25600: 5, 30720: 4, 32768: 4, 40960: 4,
    49152: 8, 65536: 8,
}  # fmt: skip
RMSNORM_TUNED = {512: 1, 768: 1, 1024: 1, 2048: 1, 4096: 1, 8192: 1}

# General kernels: (largest hidden size, warps a CTA in rows), REGISTER_NORM_LAUNCHER general rows for bf16.
GENERAL = ((128, 4), (512, 4), (1024, 4), (2048, 1), (4096, 1), (8192, 1))


def backward_workspace(
    rows: int, hidden: int, parts: int, tuned: dict[int, int], sm_margin: int, device: Any
) -> None:
    """Partial sums of the weight gradients: `parts` buffers of [CTAs a column, hidden] fp32, in one allocation.

    CTAs a column = multiprocessors x resident CTAs / CTAs a row, in the general kernel no more than the rows need. How many CTAs
    are resident depends on the registers of the compiled kernel (cudaOccupancyMaxActiveBlocksPerMultiprocessor): taken as 1.
    """
    multiprocessor_count = multiprocessors() - sm_margin
    if hidden in tuned:
        columns = max(1, multiprocessor_count // tuned[hidden])
        barrier = 2 * columns * 4 if tuned[hidden] > 1 else 0
    else:
        width, warps = next(((w, m) for w, m in GENERAL if hidden <= w), GENERAL[-1])
        ctas_per_row = ceil_div(hidden, width)
        columns = max(1, min(ceil_div(rows, warps), multiprocessor_count // ctas_per_row))
        barrier = 2 * columns * 4 if ctas_per_row > 1 else 0
    size = round_up(barrier, 16) + parts * round_up(columns * hidden * 4, 16)
    assume(
        "transformer_engine_torch.norm_backward_workspace",
        "one resident CTA a multiprocessor in the norm backward kernels",
        size,
    )
    plain([size], torch.uint8, device)


def _forward(
    x: torch.Tensor, out: Any, quantizer: Any, out_dtype: Any, with_mean: bool
) -> tuple[Any, torch.Tensor | None, torch.Tensor]:
    shape = logical_shape(x)
    rows, _ = matrix_dims(shape)
    device, dtype = x.device, torch_dtype(out_dtype)
    mean = plain([rows], torch.float32, device) if with_mean else None
    rsigma = plain([rows], torch.float32, device)
    kind = kind_of(quantizer)
    fused = kind in ("", DELAYED)
    if out is None:
        out = create(quantizer, shape, dtype, device, optimize_for_gemm=False if fused else None)
    unquantized = amax = None
    if kind == CURRENT:
        unquantized, amax = unquantized_with_amax(shape, dtype, device)
    elif not fused:
        unquantized = plain(shape, dtype, device)
    plain(
        [1], torch.uint8, device
    )  # TE's own forward kernels need no workspace; the size is 1 then (getWorkspaceShape)
    if kind == CURRENT:
        run_quantize_with_amax(quantizer, device)
    elif not fused:
        run_quantize(quantizer, device, shape, dtype)
    del unquantized, amax
    return out, mean, rsigma


@TABLE.kernel("extensions/normalization.cpp layernorm_fwd")
def layernorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    out: Any,
    quantizer: Any,
    out_dtype: Any,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    return list(_forward(input, out, quantizer, out_dtype, True))


@TABLE.kernel("extensions/normalization.cpp rmsnorm_fwd")
def rmsnorm_fwd(
    input: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: Any,
    quantizer: Any,
    out_dtype: Any,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[Any]:
    return list(_forward(input, out, quantizer, out_dtype, False))


@TABLE.kernel("extensions/normalization.cpp layernorm_bwd", note="workspace: resident CTAs assumed")
def layernorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    mu: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    dz, x = dz.contiguous(), x.contiguous()
    grads = [torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)]
    rows, hidden = matrix_dims(list(x.shape))
    backward_workspace(rows, hidden, 2, LAYERNORM_TUNED, sm_margin, x.device)
    return grads


@TABLE.kernel("extensions/normalization.cpp rmsnorm_bwd", note="workspace: resident CTAs assumed")
def rmsnorm_bwd(
    dz: torch.Tensor,
    x: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    dz, x = dz.contiguous(), x.contiguous()
    grads = [torch.empty_like(x), torch.empty_like(gamma)]
    rows, hidden = matrix_dims(list(x.shape))
    backward_workspace(rows, hidden, 1, RMSNORM_TUNED, sm_margin, x.device)
    return grads


@TABLE.kernel(
    "extensions/normalization.cpp rmsnorm_bwd_add", note="workspace: resident CTAs assumed"
)
def rmsnorm_bwd_add(
    dz: torch.Tensor,
    x: torch.Tensor,
    add: torch.Tensor,
    rsigma: torch.Tensor,
    gamma: torch.Tensor,
    sm_margin: int,
    zero_centered_gamma: bool,
) -> list[torch.Tensor]:
    add = add.contiguous()
    return rmsnorm_bwd(dz, x, rsigma, gamma, sm_margin, zero_centered_gamma)
