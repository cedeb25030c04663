"""Activations and their gradients, plain, gated and fused with quantization; dropout.

csrc/extensions/activation.cpp, csrc/extensions/bias.cpp (dact_dbias), csrc/extensions/dropout.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.kernels.transformer_engine.quantizers import (
    CURRENT,
    DELAYED,
    MXFP8,
    bias_workspace,
    create,
    kind_of,
    logical_shape,
    plain,
    run_quantize,
    run_quantize_with_amax,
    unquantized_with_amax,
)
from memtracker_sidecar.kernels.transformer_engine.table import TABLE

PLAIN = ("gelu", "relu", "silu", "qgelu", "srelu")
GATED = ("glu", "geglu", "reglu", "swiglu", "qgeglu", "sreglu", "clamped_swiglu")


def _compute(shape: list[int], dtype: torch.dtype, device: Any, quantizer: Any) -> Any:
    """Output first, then what stands beside it while the kernel runs (activation_helper, dactivation_helper)."""
    out = create(quantizer, shape, dtype, device)
    kind = kind_of(quantizer)
    if kind in ("", DELAYED, MXFP8):
        return out
    if kind == CURRENT:
        temporary, amax = unquantized_with_amax(shape, dtype, device)
        run_quantize_with_amax(quantizer, device)
        del temporary, amax
    else:
        temporary = plain(shape, dtype, device)
        run_quantize(quantizer, device, shape, dtype)
        del temporary
    return out


def _activation(divisor: int) -> Callable[..., Any]:
    def forward(input: torch.Tensor, quantizer: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        source = input.contiguous()
        shape = logical_shape(source)
        shape[-1] //= divisor
        return _compute(shape, source.dtype, source.device, quantizer)

    return forward


def _gradient(
    grad: torch.Tensor, fwd_input: torch.Tensor, quantizer: Any = None, *_args: Any, **_kwargs: Any
) -> Any:
    grad, source = grad.contiguous(), fwd_input.contiguous()
    return _compute(logical_shape(source), source.dtype, source.device, quantizer)


TABLE.kernel("extensions/activation.cpp activation_helper", *PLAIN)(_activation(1))
TABLE.kernel("extensions/activation.cpp activation_helper", *GATED)(_activation(2))
TABLE.kernel(
    "extensions/activation.cpp dactivation_helper",
    *(f"d{name}" for name in (*PLAIN, *GATED) if not name.startswith("clamped")),
    "clamped_dswiglu",
)(_gradient)


@TABLE.kernel("extensions/bias.cpp dact_dbias", *(f"dbias_d{name}" for name in PLAIN))
def activation_bias_gradient(
    grad_output: torch.Tensor, act_input: torch.Tensor, quantizer: Any
) -> list[Any]:
    grad, source = grad_output.contiguous(), act_input.contiguous()
    shape, device = logical_shape(source), source.device
    grad_input = create(quantizer, shape, grad.dtype, device)
    bias_grad = plain([shape[-1]], grad.dtype, device)
    kind = kind_of(quantizer)
    if kind in (DELAYED, MXFP8):
        bias_workspace(shape, device)
        return [bias_grad, grad_input]
    if kind == CURRENT:
        temporary, amax = unquantized_with_amax(shape, grad.dtype, device)
        torch.sum(temporary.reshape(-1, shape[-1]), 0, out=bias_grad)
        run_quantize_with_amax(quantizer, device)
        del temporary, amax
    else:
        temporary = plain(shape, grad.dtype, device)
        torch.sum(temporary.reshape(-1, shape[-1]), 0, out=bias_grad)
        run_quantize(quantizer, device, shape, grad.dtype)
        del temporary
    return [bias_grad, grad_input]


@TABLE.kernel("extensions/dropout.cpp dropout_fwd")
def dropout_fwd(
    input: torch.Tensor, dropout_probability: float, out: torch.Tensor | None = None
) -> list[torch.Tensor]:
    if out is None:
        out = plain(list(input.shape), input.dtype, input.device)
    mask = plain([input.numel() // 8], torch.uint8, input.device)
    plain([2], torch.int64, input.device)  # random state
    return [out, mask]


@TABLE.kernel("extensions/dropout.cpp dropout_bwd")
def dropout_bwd(
    grad_output: torch.Tensor,
    mask: torch.Tensor,
    dropout_probability: float,
    grad_input: torch.Tensor | None = None,
) -> torch.Tensor:
    return torch.empty_like(grad_output) if grad_input is None else grad_input
