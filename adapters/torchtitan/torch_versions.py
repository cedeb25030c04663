"""What PyTorch did differently when an old job ran, where it changes memory and can be put back.

A checkout of 2024 runs on the pinned PyTorch, but its published memory was measured on the PyTorch of its time.
`--option torch=2.6` restores the named behaviours of that version; nothing else of it is emulated.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.adapter_api import AdapterContext


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


BEHAVIOURS: dict[str, dict[str, Callable[[AdapterContext], None]]] = {
    "2.6": {
        # torch/distributed/fsdp/_fully_shard/_fsdp_state.py of 2.6, FSDPState._lazy_init: post_forward_mesh_info = None
        "the FSDP2 root does not reshard after forward": _root_never_reshards,
        "scaled_dot_product_attention tries flash before cuDNN": _flash_before_cudnn,
        # torch/nn/init.py of 2.6, _no_grad_trunc_normal_
        "truncated normals are drawn in place": _truncated_normal_in_place,
        # torch/_functorch/compile_utils.py at 017d2eb2, fx_graph_cse: no check of is_impure
        "equal collectives of a compiled graph are merged with their waits": _equal_collectives_are_one,
    },
}
"""By PyTorch version: sentence -> what restores it."""


def restore(context: AdapterContext, version: str) -> None:
    """Puts the named behaviours of `version` back and says so in the trace."""
    for sentence, apply in BEHAVIOURS.get(version, {}).items():
        apply(context)
        context.uncovered(
            "feature", f"PyTorch {version}", detail=sentence, assumption=f"--option torch={version}"
        )
