"""Inductor of PyTorch 2.6: how long the buffers of a compiled graph live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memtracker_sidecar.adapter_api import AdapterContext


def reuse_whatever_it_costs(context: AdapterContext) -> None:
    """A freed buffer is handed to the next one of its size. Today only where the graph's peak stays what it is."""
    context.replace(
        "torch._inductor.codegen.wrapper",
        "AllocateLine.should_reuse_buffer",
        lambda _current: lambda *_: True,
        "a buffer was handed on even if it had to be kept through the peak of the graph",
    )


def orderings_keep_buffers(context: AdapterContext) -> None:
    """Collectives are kept in order by dependencies on the one before, which counted as uses of its result."""

    def make(init: Callable[..., None]) -> Callable[..., None]:
        def always_a_use(self: Any, name: str, mutating_buf: str, is_fake: bool = False) -> None:
            del is_fake
            init(self, name, mutating_buf)

        return always_a_use

    context.replace(
        "torch._inductor.dependencies",
        "WeakDep.__init__",
        make,
        "what only orders two kernels counted as a use of the first one's buffer",
    )


def copy_expanded_attention_inputs(context: AdapterContext) -> None:
    """Repeated heads are an expanded view, which scaled_dot_product_attention can read as it is."""

    def is_expanded(argument: Any, node: Any) -> bool:
        from torch._inductor import ir

        return (
            isinstance(argument, ir.TensorBox)
            and isinstance(argument.data, ir.BaseView)
            and len(argument.get_size()) == 4
            and 0 in node.meta["val"].stride()
        )

    def make(constraints: dict[Any, Any]) -> dict[Any, Any]:
        from torch._inductor import ir, lowering

        def constrain(node: Any, *arguments: Any, **keywords: Any) -> Any:
            dense = [
                ir.ExternKernel.require_contiguous(argument)
                if is_expanded(argument, of)
                else argument
                for argument, of in zip(arguments, node.args, strict=True)
            ]
            return lowering.sdpa_constraint(node, *dense, **keywords)

        return {
            operator: constrain if constraint is lowering.sdpa_constraint else constraint
            for operator, constraint in constraints.items()
        }

    context.replace(
        "torch._inductor.lowering",
        "_maybe_layout_constraints",
        make,
        "attention got repeated keys and values as copies",
    )


def fuse_no_more_than_then(context: AdapterContext) -> None:
    """Fusions that are on by default today, and off or not there then."""
    from torch._inductor import config

    reason = "kernels were fused only where their loops agreed"
    context.replacements.set(config, "loop_ordering_after_fusion", False, reason)
    context.replacements.set(config, "loop_reindexing_after_fusion", False, reason)
    context.replacements.set(config.triton, "mix_order_reduction", False, reason)
