"""What PyTorch did differently when an old job ran, where it changes memory and can be put back.

A checkout of 2024 runs on the pinned PyTorch, but its published memory was measured on the PyTorch of its time.
`--option torch=2.6` restores the named behaviours of that version; nothing else of it is emulated.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.adapter_api import AdapterContext

from . import inductor_2_6, pipeline_2_6


def _root_never_reshards(context: AdapterContext) -> None:
    def make(lazy_init: Callable[[Any], None]) -> Callable[[Any], None]:
        def with_old_root(state: Any) -> None:
            if state._is_root is None:
                state._auto_reshard_after_forward = True
            lazy_init(state)

        return with_old_root

    context.replace(
        "torch.distributed.fsdp._fully_shard._fsdp_state",
        "FSDPState._lazy_init",
        make,
        "until 2.7 the root's parameters stayed gathered after forward whatever fully_shard() was told",
    )


def _flash_before_cudnn(context: AdapterContext) -> None:
    del context
    # aten/src/ATen/Context.h of 2.6: the priority order is flash, efficient, math, cudnn, with no exception for Hopper. The
    # variable is PyTorch's own switch for the exception that later versions make.
    os.environ["TORCH_CUDNN_SDPA_DEPRIORITIZED"] = "1"


def _equal_collectives_are_one(context: AdapterContext) -> None:
    """Until the purity check came into fx_graph_cse, two equal collectives of a joint graph were merged with their waits.
    So a gather that the backward repeats counted as the forward's, which activation checkpointing recomputes; today the
    second wait keeps what follows it apart, and the partitioner saves that."""
    node = context.require("torch.fx", "Node", why="common subexpressions of a joint graph")
    is_impure = node.is_impure
    merging = [0]

    def is_impure_but_for_collectives(self: Any, *arguments: Any, **keywords: Any) -> bool:
        if merging[0] and getattr(self.target, "namespace", "") == "_c10d_functional":
            return False
        return bool(is_impure(self, *arguments, **keywords))

    def make(cse: Callable[..., Any]) -> Callable[..., Any]:
        def with_collectives(*arguments: Any, **keywords: Any) -> Any:
            merging[0] += 1
            try:
                return cse(*arguments, **keywords)
            finally:
                merging[0] -= 1

        return with_collectives

    context.replacements.set(
        node, "is_impure", is_impure_but_for_collectives, "merges equal collectives, as it was"
    )
    context.replace(
        "torch._functorch.partitioners", "fx_graph_cse", make, "merges equal collectives, as it was"
    )


def _truncated_normal_in_place(context: AdapterContext) -> None:
    def make(_current: Callable[..., Any]) -> Callable[..., Any]:
        def in_place(
            tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None
        ) -> torch.Tensor:
            low, high = (
                (1 + math.erf((bound - mean) / std / math.sqrt(2))) / 2 for bound in (a, b)
            )
            with torch.no_grad():
                tensor.uniform_(2 * low - 1, 2 * high - 1, generator=generator)
                tensor.erfinv_().mul_(std * math.sqrt(2)).add_(mean).clamp_(min=a, max=b)
            return tensor

        return in_place

    context.replace(
        "torch.nn.init",
        "_no_grad_trunc_normal_",
        make,
        "drew truncated normals through the inverse error function, without masks of the rejected values",
    )


def _gathers_are_always_copied(context: AdapterContext) -> None:
    def make(_current: Callable[..., Any]) -> Callable[..., Any]:
        def copied(gathered: torch.Tensor, group_size: int, gather_dim: int) -> torch.Tensor:
            return torch.cat(torch.chunk(gathered, group_size, dim=0), dim=gather_dim)

        return copied

    context.replace(
        "torch.distributed._functional_collectives",
        "_maybe_view_chunk_cat",
        make,
        "a gather along another dimension than the first was copied, also where a view would do",
    )


def _recomputed_functions_hold_themselves(context: AdapterContext) -> None:
    def make(_current: Callable[..., Any]) -> Callable[..., Any]:
        def disabled(fn: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
            return torch._disable_dynamo(fn)(*arguments, **keywords)

        return disabled

    context.replace(
        "torch.utils.checkpoint",
        "_run_fn_with_dynamo_disabled",
        make,
        "the decorated function of a checkpointed block referred to itself until the next collection",
    )


def _fsdp_stays_out_of_selective_checkpoints(context: AdapterContext) -> None:
    depth = [0]
    profiler = torch.ops.profiler
    marks = {
        getattr(packet, overload)
        for packet in (profiler._record_function_enter_new, profiler._record_function_exit)
        for overload in packet.overloads()
    }

    def outside(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def uncounted(*arguments: Any, **keywords: Any) -> Any:
            depth[0] += 1
            try:
                return original(*arguments, **keywords)
            finally:
                depth[0] -= 1

        return uncounted

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if depth[0] or func in marks:
                return func(*args, **(kwargs or {}))
            return original(mode, func, types, args, kwargs)

        return dispatch

    reason = "selective checkpoints counted only the operators that they saved"
    for method in ("pre_forward", "post_forward"):
        context.replace(
            "torch.distributed.fsdp._fully_shard._fsdp_param_group",
            f"FSDPParamGroup.{method}",
            outside,
            reason,
        )
    for mode in ("_CachingTorchDispatchMode", "_CachedTorchDispatchMode"):
        context.replace("torch.utils.checkpoint", f"{mode}.__torch_dispatch__", counting, reason)


BEHAVIOURS: dict[str, dict[str, Callable[[AdapterContext], None]]] = {
    "2.6": {
        # torch/distributed/fsdp/_fully_shard/_fsdp_state.py of 2.6, FSDPState._lazy_init: post_forward_mesh_info = None
        "the FSDP2 root does not reshard after forward": _root_never_reshards,
        "scaled_dot_product_attention tries flash before cuDNN": _flash_before_cudnn,
        # torch/nn/init.py of 2.6, _no_grad_trunc_normal_
        "truncated normals are drawn in place": _truncated_normal_in_place,
        # torch/_functorch/compile_utils.py at 017d2eb2, fx_graph_cse: no check of is_impure
        "equal collectives of a compiled graph are merged with their waits": _equal_collectives_are_one,
        # torch/_inductor/codegen/wrapper.py of 2.6, AllocateLine.plan: no should_reuse_buffer
        "Inductor hands on a buffer however long it has to be kept for that": inductor_2_6.reuse_whatever_it_costs,
        # torch/_inductor/dependencies.py of 2.6: WeakDep has no is_fake; scheduler.py counts every dependency as a use
        "Inductor keeps the result of a collective until the next one": inductor_2_6.orderings_keep_buffers,
        # torch/_inductor/lowering.py of 2.6, sdpa_constraint: views are not asked for their strides
        "Inductor copies expanded keys and values": inductor_2_6.copy_expanded_attention_inputs,
        # torch/_inductor/config.py of 2.6: loop_ordering_after_fusion is False, the others are not there
        "Inductor fuses no kernels whose loops differ": inductor_2_6.fuse_no_more_than_then,
        # torch/distributed/_functional_collectives.py of 2.6, all_gather_tensor
        "gathers along another dimension than the first are copied": _gathers_are_always_copied,
        # torch/distributed/pipelining/stage.py of 2.6, forward_one_chunk: output_chunks.append(output) on every stage
        "pipeline stages keep the outputs of all micro-batches until the next step": pipeline_2_6.stages_keep_their_outputs,
        # torch/distributed/pipelining/_backward.py of 2.6, stage_backward: val.grad is read and stays
        "pipeline stages keep the gradients of their inputs until the next step": pipeline_2_6.stages_keep_gradients_of_inputs,
        # torch/distributed/pipelining/stage.py of 2.6, backward_maybe_with_nosync: post_backward() of each group, and no
        # _root_post_backward_final_callback() after it, which is what lets go of FSDPCommContext.reduce_scatter_state
        "the last reduce-scatter of a pipeline stage keeps its input until the next step": pipeline_2_6.stages_leave_the_last_reduction_open,
    },
    # Nightlies of May 2025, between pytorch#153300 and the fix of pytorch#154642.
    "2.8.dev": {
        # torch/_compile.py, _disable_dynamo keeps what it makes on the function that it is given, and that refers back. The
        # comment at torch/utils/checkpoint.py, _run_fn_with_dynamo_disabled of 2.14 names the issue and the cure.
        "functions that recompute checkpointed blocks are kept until a collection": _recomputed_functions_hold_themselves,
    },
}
"""By PyTorch version: sentence -> what restores it."""


NEEDED_BY_OLD_CHECKOUTS: dict[str, Callable[[AdapterContext], None]] = {
    # A layer whose experts are sharded on their own gathers them once more, or once less, when it is recomputed. From 2.13 to
    # 2.14 that ends the backward ("invocation index … not found in storage": pytorch/torchtitan#3427); pytorch#196862 keeps FSDP
    # out of the count again, as it was when only saved operators were counted.
    "FSDP's own operators are not part of a selective checkpoint": _fsdp_stays_out_of_selective_checkpoints,
}
"""What a checkout of 0.2 and before does not run without, on the pinned PyTorch."""


def restore(context: AdapterContext, version: str, *, old_checkout: bool) -> None:
    """Puts the named behaviours of `version` back, and what an old checkout needs, and says so in the trace."""
    if old_checkout:
        for sentence, apply in NEEDED_BY_OLD_CHECKOUTS.items():
            apply(context)
            context.uncovered(
                "feature",
                "PyTorch of the checkout's time",
                detail=sentence,
                assumption="as the PyTorch did that the checkout was written for",
            )
    for sentence, apply in BEHAVIOURS.get(version, {}).items():
        apply(context)
        context.uncovered(
            "feature", f"PyTorch {version}", detail=sentence, assumption=f"--option torch={version}"
        )
