"""Scaled softmax of the unfused attention: a result like the scores; the gradient is written over the incoming one.

csrc/extensions/softmax.cpp.
"""

from __future__ import annotations

import torch

from memtracker_sidecar.kernels.transformer_engine.quantizers import plain
from memtracker_sidecar.kernels.transformer_engine.table import TABLE


@TABLE.kernel(
    "extensions/softmax.cpp scaled_*_softmax_forward",
    "scaled_softmax_forward",
    "scaled_upper_triang_masked_softmax_forward",
    "scaled_aligned_causal_masked_softmax_forward",
)
def forward(input: torch.Tensor, scale_factor: float) -> torch.Tensor:
    return plain(list(input.shape), input.dtype, input.device)


@TABLE.kernel("extensions/softmax.cpp scaled_masked_softmax_forward")
def scaled_masked_softmax_forward(
    input: torch.Tensor, mask: torch.Tensor, scale_factor: float
) -> torch.Tensor:
    source, kept = input.contiguous(), mask.contiguous()
    result = plain(list(source.shape), source.dtype, source.device)
    del kept
    return result


@TABLE.kernel(
    "extensions/softmax.cpp scaled_*_softmax_backward",
    "scaled_softmax_backward",
    "scaled_masked_softmax_backward",
    "scaled_upper_triang_masked_softmax_backward",
    "scaled_aligned_causal_masked_softmax_backward",
)
def backward(
    output_grad: torch.Tensor, softmax_results: torch.Tensor, scale_factor: float
) -> torch.Tensor:
    grad, results = output_grad.contiguous(), softmax_results.contiguous()
    del results
    return grad
