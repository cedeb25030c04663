"""scaled_dot_product_attention: which of PyTorch's kernels a real GPU would choose.

The choice decides memory: the math path materialises the scores, the fused ones save a log-sum-exp. On fake tensors PyTorch
itself always ends in the math path, because the selection code asks the driver. So the selection is done here, with the rules
of PyTorch 2.14 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, and attention.cpp for what each kernel is given), and the
chosen operator is called. It is registered as the CUDA kernel of the operator, so C++ callers, DTensor and AOTAutograd get it too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend

aten = torch.ops.aten
Tensor = torch.Tensor

_DEFAULT_ORDER = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
]
_HALF = (torch.float16, torch.bfloat16)


def _prefers_cudnn(capability: tuple[int, int]) -> bool:
    # check_prefer_cudnn_attention: cuDNN above 9.15 (the pinned CUDA wheel ships 9.24), data-centre Hopper and Blackwell.
    return capability in ((9, 0), (10, 0)) and not os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED")


class AttentionChoice:
    """The selection for one GPU. `chosen` counts what was picked, by backend."""

    def __init__(self, capability: tuple[int, int], uncovered: Callable[..., None]) -> None:
        self._capability = capability
        self._uncovered = uncovered
        self._library: torch.library.Library | None = None
        self.chosen: dict[str, int] = {}

    def install(self) -> None:
        """Registers the selection for CUDA tensors, with and without autograd."""
        self._library = torch.library.Library("aten", "IMPL")
        for key in ("AutogradCUDA", "CUDA"):
            self._library.impl("scaled_dot_product_attention", self._attend, key)

    def remove(self) -> None:
        if self._library is not None:
            self._library._destroy()
            self._library = None

    # -- selection

    def order(self) -> list[SDPBackend]:
        """Backends in the order in which they are tried."""
        try:
            order = [SDPBackend(value) for value in torch._C._get_sdp_priority_order()]
        except (AttributeError, ValueError):
            order = list(_DEFAULT_ORDER)
        known = [backend for backend in order if backend in _DEFAULT_ORDER]
        if known == _DEFAULT_ORDER and _prefers_cudnn(self._capability):
            known = [SDPBackend.CUDNN_ATTENTION, *_DEFAULT_ORDER[:3]]
        return known

    def select(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> SDPBackend:
        """The backend that a GPU of this capability runs.

        Raises:
            RuntimeError: none is allowed and possible, as on a GPU.
        """
        enabled = {
            SDPBackend.FLASH_ATTENTION: torch.backends.cuda.flash_sdp_enabled(),
            SDPBackend.EFFICIENT_ATTENTION: torch.backends.cuda.mem_efficient_sdp_enabled(),
            SDPBackend.MATH: torch.backends.cuda.math_sdp_enabled(),
            SDPBackend.CUDNN_ATTENTION: torch.backends.cuda.cudnn_sdp_enabled(),
        }
        for backend in self.order():
            if enabled[backend] and self._possible(backend, query, key, value, mask, is_causal):
                return backend
        raise RuntimeError("No available kernel. Aborting execution.")

    def _possible(
        self,
        backend: SDPBackend,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
    ) -> bool:
        if backend == SDPBackend.MATH:
            return True
        if query.dim() != 4 or min(query.shape[-2], key.shape[-2]) == 0:
            return False
        head = query.shape[-1]
        if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
            return False
        same_head = head == key.shape[-1] == value.shape[-1]
        if backend == SDPBackend.FLASH_ATTENTION:
            return (
                self._capability >= (8, 0)
                and query.dtype in _HALF
                and mask is None
                and same_head
                and head <= 256
                and not (is_causal and query.shape[-2] != key.shape[-2])
            )
        if backend == SDPBackend.CUDNN_ATTENTION:
            limit = 256 if self._capability[0] in (9, 10) else 128
            return (
                self._capability >= (8, 0)
                and query.dtype in _HALF
                and head % 8 == 0
                and value.shape[-1] % 8 == 0
                and max(head, value.shape[-1]) <= limit
                and not (mask is not None and mask.requires_grad)
            )
        alignment = 8 if query.dtype in _HALF and self._capability >= (8, 0) else 4
        return (
            (query.dtype in (*_HALF, torch.float32))
            and not (query.dtype is torch.bfloat16 and self._capability < (8, 0))
            and head % alignment == 0
            and value.shape[-1] % alignment == 0
        )

    # -- calls, as scaled_dot_product_attention makes them

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        backend = self.select(query, key, value, attn_mask, is_causal)
        self.chosen[backend.name.lower()] = self.chosen.get(backend.name.lower(), 0) + 1
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            # convert_boolean_attn_mask: an additive mask of the query's type
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                attn_mask.logical_not(), -math.inf
            )
        gradients = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in (query, key, value)
        )
        out: Tensor
        if backend == SDPBackend.FLASH_ATTENTION:
            width = query.shape[-1]
            scale = scale if scale is not None else width**-0.5
            padding = -width % 8  # pad_last_dim<8>
            if padding:
                query, key, value = (
                    torch.nn.functional.pad(tensor, (0, padding)) for tensor in (query, key, value)
                )
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
            return out[..., :width] if padding else out
        if backend == SDPBackend.CUDNN_ATTENTION:
            self._uncovered(
                "kernel",
                "cudnn attention",
                assumption="the workspace that cuDNN's frontend lays out is counted; "
                "what its execution plan needs besides is not",
                once_for="cudnn attention",
            )
            out = aten._scaled_dot_product_cudnn_attention(
                query, key, value, attn_mask, gradients, dropout_p, is_causal, False, scale=scale
            )[0]
            return out
        if backend == SDPBackend.EFFICIENT_ATTENTION:
            self._uncovered(
                "kernel",
                "efficient attention",
                assumption="the workspace of its backward is not counted",
                once_for="efficient attention",
            )
            if query.shape[1] != key.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
            if attn_mask is not None:
                attn_mask = self._aligned_mask(attn_mask, query, key)
            out = aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, gradients, dropout_p, is_causal, scale=scale
            )[0]
            return out
        out = aten._scaled_dot_product_attention_math(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            None,
            scale=scale,
            enable_gqa=enable_gqa,
        )[0]
        return out

    @staticmethod
    def _aligned_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # pad_bias<16>: rows of the mask start at multiples of 16 elements; then it is expanded without a copy.
        width = mask.shape[-1]
        if width % 16:
            mask = torch.nn.functional.pad(mask, (0, 16 - width % 16))[..., :width]
        return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def install_flash_implementations(replacements: Any, uncovered: Callable[..., None]) -> None:
    """Choosing FlashAttention 3 or 4 succeeds without its package: the operators and what they return stay the same."""
    import torch.nn.attention as attention

    def activate(implementation: Any) -> None:
        uncovered(
            "kernel",
            str(implementation),
            detail="the package of this FlashAttention is not needed for a trace",
            assumption="it returns what PyTorch's own FlashAttention 2 returns, and its scratch is not counted",
            once_for=str(implementation),
        )

    reason = "registers kernels of a package that needs a GPU"
    replacements.set_existing(
        attention,
        {
            "activate_flash_attention_impl": activate,
            "restore_flash_attention_impl": lambda *_: None,
        },
        reason,
    )


def install_convolution(replacements: Any, recorder: Any, uncovered: Callable[..., None]) -> None:
    """Convolutions run on cuDNN, as on a GPU; PyTorch's selection would ask the driver for cuDNN's version."""
    backends: Any = getattr(torch._C, "_ConvBackend", None)
    if backends is not None and hasattr(torch._C, "_select_conv_backend"):
        cudnn = backends.Cudnn
        replacements.set(
            torch._C,
            "_select_conv_backend",
            lambda *_arguments, **_options: cudnn,
            "the selection of a convolution asks the driver",
        )
        replacements.set(
            torch._C,
            "_conv_determine_backend_memory_format",
            lambda inputs, *_arguments, **_options: (
                torch.channels_last
                if inputs.dim() == 4
                and inputs.is_contiguous(memory_format=torch.channels_last)
                and not inputs.is_contiguous()
                else torch.contiguous_format
            ),
            "the memory format follows the input, as in cudnn_conv_suggest_memory_format",
        )

    def convolved(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if args[0].device.type == "cuda":
            uncovered(
                "kernel",
                "cudnn convolution",
                assumption="the workspace of the algorithm that cuDNN chooses is not counted",
                once_for="cudnn convolution",
            )

    recorder.after[aten.convolution.default] = convolved
