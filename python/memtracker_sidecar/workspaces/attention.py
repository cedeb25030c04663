"""Attention kernels: accumulators of FlashAttention and of cuDNN's attention.

Of cuDNN's workspace the part that its frontend lays out is known from source; what the execution plan of the library asks for
besides is decided at run time and is reported as uncovered where the kernel is chosen (`memtracker_sidecar/attention.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from memtracker_sidecar.workspace_rules import Call, Workspace, WorkspaceRules, argument

_SOURCE = "PyTorch, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp"
_SDPA_SOURCE = "PyTorch, aten/src/ATen/native/transformers/cuda/attention_backward.cu, _flash_attention_backward"
_CUDNN = "PyTorch, aten/src/ATen/native/cudnn/MHA.cpp, run_cudnn_SDP_bprop"
_CUDNN_FRONTEND = "NVIDIA cudnn-frontend, include/cudnn_frontend/node/scaled_dot_product_flash_attention.h, CompositeSDPABackwardNode"
_FLOAT = 4


def _ceil(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def rounded_head(head: int) -> int:
    """flash_api.cpp, mha_fwd and mha_bwd: head_size_rounded."""
    return _ceil(head, 32 if head <= 128 else 64)


def splits(batch_heads_blocks: int, multiprocessors: int, key_blocks: int, most: int = 128) -> int:
    """Into how many parts the keys are split so that a small problem fills the GPU (flash_api.cpp, num_splits_heuristic)."""
    if batch_heads_blocks >= 0.8 * multiprocessors:
        return 1
    most = min(most, multiprocessors, key_blocks)
    efficiency = []
    for parts in range(1, most + 1):
        waves = batch_heads_blocks * parts / multiprocessors
        eligible = parts == 1 or -(-key_blocks // parts) != -(-key_blocks // (parts - 1))
        efficiency.append(waves / math.ceil(waves) if eligible else 0.0)
    best = max(efficiency, default=0.0)
    return next(
        (index + 1 for index, value in enumerate(efficiency) if value >= 0.85 * best and value), 1
    )


def _forward(call: Call) -> Iterable[Workspace]:
    query, key = call.args[0], call.args[1]
    if query.dim() != 4 or argument(call, "dropout_p", 0.0):
        return ()
    batch, heads, length, head = query.shape
    block = 256 if head <= 64 else 128 if head <= 128 else 64
    parts = splits(
        batch * heads * -(-length // 64), 2 * call.gpu.multiprocessors, -(-key.shape[2] // block)
    )
    if parts == 1:
        return ()
    source = f"{_SOURCE}, set_params_splitkv"
    rows = parts * batch * heads * length
    return (
        Workspace(rows * _FLOAT, "flash attention log-sum-exp of splits", "after", source),
        Workspace(
            rows * rounded_head(head) * _FLOAT, "flash attention output of splits", "after", source
        ),
    )


def _backward(call: Call) -> Iterable[Workspace]:
    gradient, query, key, value, out = call.args[:5]
    if query.dim() != 4:
        return
    batch, heads, length, head = query.shape
    key_heads, key_length = key.shape[1], key.shape[2]
    for tensor, name in ((gradient, "gradient"), (out, "output")):
        if not tensor.transpose(1, 2).is_contiguous():
            size = tensor.numel() * tensor.element_size()
            yield Workspace(size, f"flash attention {name}, contiguous", "before", _SDPA_SOURCE)
    source = f"{_SOURCE}, mha_bwd"
    rows = _ceil(length, 128)
    yield Workspace(batch * heads * rows * _FLOAT, "flash attention softmax_d", "after", source)
    accumulators = 1
    if torch.are_deterministic_algorithms_enabled():
        accumulators = -(-call.gpu.multiprocessors // (batch * heads))
    size = accumulators * batch * rows * heads * rounded_head(head) * _FLOAT
    yield Workspace(size, "flash attention dq_accum", "after", source)
    if key_heads != heads:
        size = batch * key_length * heads * head * query.element_size()
        yield Workspace(size, "flash attention dk_expanded", "after", source)
        yield Workspace(size, "flash attention dv_expanded", "after", source)


def _cudnn_backward(call: Call) -> Iterable[Workspace]:
    gradient, query, _key, _value, out = call.args[:5]
    if query.dim() != 4:
        return
    if gradient.stride() != out.stride():
        size = gradient.numel() * gradient.element_size()
        yield Workspace(size, "cudnn attention gradient, in the output's layout", "before", _CUDNN)
    batch, heads, length, head = query.shape
    rows = batch * heads * length
    # One allocation: dQ_accum and softmax_sum, both float (the frontend's get_fe_workspace_size_node).
    yield Workspace(
        rows * (head + 1) * _FLOAT, "cudnn attention workspace", "after", _CUDNN_FRONTEND
    )


def register(rules: WorkspaceRules) -> None:
    rules.add(("aten::_scaled_dot_product_flash_attention",), _forward)
    rules.add(("aten::_scaled_dot_product_flash_attention_backward",), _backward)
    rules.add(("aten::_scaled_dot_product_cudnn_attention_backward",), _cudnn_backward)
