"""NVIDIA apex: the multi-tensor kernels, fused optimizers, layer norms, masked softmax and weight-gradient GEMMs.

apex (commit 6424da3b, July 2026) is not on a package registry, so its few Python classes that training code imports stand
here too; their kernels are the tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.extension import ExtensionModule, KernelTable
from memtracker_sidecar.kernels.packages import installed, module

APEX = "apex 6424da3b"
AMP_C = KernelTable("amp_C", f"{APEX} csrc")
LAYER_NORM = KernelTable("fused_layer_norm_cuda", f"{APEX} csrc")
FAST_LAYER_NORM = KernelTable("fast_layer_norm", f"{APEX} apex/contrib/csrc/layer_norm")
SOFTMAX = KernelTable("scaled_softmax_cuda", f"{APEX} csrc/megatron")
WEIGHT_GRADIENT = KernelTable("fused_weight_gradient_mlp_cuda", f"{APEX} csrc/megatron")


def _empty(shape: Sequence[int], dtype: torch.dtype, device: Any) -> torch.Tensor:
    return torch.empty(list(shape), dtype=dtype, device=device)


# -- amp_C

AMP_C.no_allocation(
    "multi_tensor_{adam,sgd,scale,axpby,adagrad,novograd}*.cu",
    "multi_tensor_adam",
    "multi_tensor_adam_capturable",
    "multi_tensor_adam_capturable_master",
    "multi_tensor_sgd",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_axpby",
    "multi_tensor_adagrad",
    "multi_tensor_novograd",
)


@AMP_C.kernel(
    "multi_tensor_l2norm_kernel.cu multi_tensor_l2norm_cuda",
    "multi_tensor_l2norm",
    "multi_tensor_l2norm_mp",
)
def multi_tensor_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Sequence[torch.Tensor]],
    per_tensor: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """320 partial sums; per tensor: one sum for each chunk of the largest tensor, and one result each; then the result."""
    tensors = tensor_lists[0]
    device = tensors[0].device
    partial = torch.zeros(320, dtype=torch.float32, device=device)
    if per_tensor:
        chunks = max(-(-tensor.numel() // chunk_size) for tensor in tensors)
        partial_per_tensor = torch.zeros(len(tensors) * chunks, dtype=torch.float32, device=device)
        result_per_tensor = _empty([len(tensors)], torch.float32, device)
        del partial_per_tensor
    else:
        result_per_tensor = _empty([0], torch.float32, device)
    result = _empty([1], torch.float32, device)
    del partial
    return result, result_per_tensor


@AMP_C.kernel("multi_tensor_l2norm_kernel.cu multi_tensor_unscale_l2norm_cuda")
def multi_tensor_unscale_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Sequence[torch.Tensor]],
    inv_scale: torch.Tensor,
    per_tensor: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    return multi_tensor_l2norm(chunk_size, noop_flag, tensor_lists, per_tensor)


class MultiTensorApply:
    """apex/multi_tensor_apply/multi_tensor_apply.py."""

    available = True
    warned = False

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(
        self, op: Callable[..., Any], noop_flag: Any, tensor_lists: Any, *args: Any
    ) -> Any:
        return op(self.chunk_size, noop_flag, tensor_lists, *args)


class FusedAdam(torch.optim.Optimizer):
    """apex/optimizers/fused_adam.py: two fp32 moments a parameter, made at the first step; the update is in place."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
        capturable: bool = False,
        master_weights: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.adam_w_mode = 1 if adam_w_mode else 0
        self.set_grad_none = set_grad_none
        self.capturable = capturable
        self.master_weights = master_weights
        self._dummy_overflow_buf = torch.tensor([0], dtype=torch.int, device="cuda")

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=self.set_grad_none)

    @torch.no_grad()
    def step(self, closure: Any = None, **_deprecated: Any) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter.data).float()
                    state["exp_avg_sq"] = torch.zeros_like(parameter.data).float()
        return loss


class FusedSGD(torch.optim.SGD):
    """apex/optimizers/fused_sgd.py: a momentum buffer a parameter, update in place."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.0, **options: Any) -> None:
        options.pop("wd_after_momentum", None)
        options.pop("materialize_master_grads", None)
        super().__init__(params, lr=lr, momentum=momentum, foreach=False, **options)


# -- layer norms


@LAYER_NORM.kernel(
    "layer_norm_cuda.cpp layer_norm_affine", "forward_affine", "forward_affine_mixed_dtypes"
)
def layer_norm_forward(
    x: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = x.numel() // x.shape[-1]
    out = torch.empty_like(x)
    return out, _empty([rows], torch.float32, x.device), _empty([rows], torch.float32, x.device)


@LAYER_NORM.kernel("layer_norm_cuda_kernel.cu HostLayerNormGradient", "backward_affine")
def layer_norm_backward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Sixteen partial sums a column for each weight gradient."""
    grads = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
    partial = [_empty([16, x.shape[-1]], torch.float32, x.device) for _ in range(2)]
    del partial
    return grads


class FusedLayerNormAffineFunction(torch.autograd.Function):
    """apex/normalization/fused_layer_norm.py."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: Any,
        bias: Any,
        normalized_shape: Any,
        eps: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        x = input.contiguous()
        out, mean, invvar = LAYER_NORM.functions["forward_affine"](
            x, normalized_shape, weight, bias, eps
        )
        if memory_efficient:
            ctx.save_for_backward(out, weight, bias, None, invvar)
        else:
            ctx.save_for_backward(x, weight, bias, mean, invvar)
        return out

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        x, weight, bias, _mean, _invvar = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        grads = LAYER_NORM.functions["backward_affine"](x, weight, bias)
        return (*grads, None, None, None)


@FAST_LAYER_NORM.kernel("ln_api.cpp ln_fwd")
def ln_fwd(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, ...]:
    rows = x.numel() // gamma.numel()
    out = torch.empty_like(x)
    return out, _empty([rows], torch.float32, x.device), _empty([rows], torch.float32, x.device)


@FAST_LAYER_NORM.kernel("ln_api.cpp ln_bwd", note="one resident CTA a multiprocessor assumed")
def ln_bwd(dz: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor) -> tuple[torch.Tensor, ...]:
    grads = torch.empty_like(x), torch.empty_like(gamma), torch.empty_like(gamma)
    columns = int(torch.cuda.get_device_properties(0).multi_processor_count)
    partial = [_empty([columns, gamma.numel()], torch.float32, x.device) for _ in range(2)]
    del partial
    return grads


class FastLayerNormFN(torch.autograd.Function):
    """apex/contrib/layer_norm/layer_norm.py."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        gamma: torch.Tensor,
        beta: torch.Tensor,
        epsilon: float,
        memory_efficient: bool = False,
    ) -> torch.Tensor:
        x = x.contiguous()
        rows = x.view(-1, gamma.numel())
        out, mean, rsigma = FAST_LAYER_NORM.functions["ln_fwd"](rows, gamma, beta, epsilon)
        if memory_efficient:
            ctx.save_for_backward(out.view(x.shape), gamma, None, rsigma, beta)
        else:
            ctx.save_for_backward(x, gamma, mean, rsigma, None)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, gamma, _mean, _rsigma, _beta = ctx.saved_tensors
        dy = dy.contiguous()
        dx, dgamma, dbeta = FAST_LAYER_NORM.functions["ln_bwd"](
            dy, x.view(-1, gamma.numel()), gamma
        )
        return dx.view(x.shape), dgamma, dbeta, None, None


# -- masked softmax of Megatron, weight gradients


@SOFTMAX.kernel("scaled_masked_softmax_cuda.cu and its siblings, fwd_cuda")
def forward(scores: torch.Tensor, *_args: Any) -> torch.Tensor:
    return torch.empty_like(scores)


@SOFTMAX.kernel(
    "scaled_masked_softmax_cuda.cu and its siblings, bwd_cuda", note="over the incoming gradient"
)
def backward(grad: torch.Tensor, results: torch.Tensor, *_args: Any) -> torch.Tensor:
    return grad.contiguous()


@SOFTMAX.kernel("scaled_masked_softmax.cpp get_batch_per_block")
def get_batch_per_block(query_seq_len: int, key_seq_len: int, batches: int, attn_heads: int) -> int:
    """scaled_masked_softmax.h: 128 threads a block, a warp a row, two rows a warp below 128 keys."""
    power = 1 << max(0, key_seq_len - 1).bit_length()
    warp = min(power, 32)
    return (128 // warp) * (2 if power <= 128 else 1)


WEIGHT_GRADIENT.no_allocation(
    "fused_weight_gradient_dense_cuda.cu", "wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16"
)

SOFTMAX_MODULES = (
    "scaled_softmax_cuda",
    "scaled_masked_softmax_cuda",
    "scaled_upper_triang_masked_softmax_cuda",
    "generic_scaled_masked_softmax_cuda",
)


def install() -> bool:
    """Puts apex and its compiled modules in place. Does nothing (and says so) where apex is installed."""
    if installed("apex"):
        return False
    module("amp_C", instead=ExtensionModule("amp_C", AMP_C))
    module(
        "fused_weight_gradient_mlp_cuda",
        instead=ExtensionModule("fused_weight_gradient_mlp_cuda", WEIGHT_GRADIENT),
    )
    for name in SOFTMAX_MODULES:
        module(name, instead=ExtensionModule(name, SOFTMAX))
    module("apex", {"__version__": "0.1"})
    module(
        "apex.multi_tensor_apply",
        {"MultiTensorApply": MultiTensorApply, "multi_tensor_applier": MultiTensorApply(2048 * 32)},
    )
    module("apex.optimizers", {"FusedAdam": FusedAdam, "FusedSGD": FusedSGD})
    module("apex.normalization")
    module(
        "apex.normalization.fused_layer_norm",
        {"FusedLayerNormAffineFunction": FusedLayerNormAffineFunction},
    )
    module("apex.transformer.functional")
    module("apex.contrib.layer_norm.layer_norm", {"FastLayerNormFN": FastLayerNormFN})
    return True
