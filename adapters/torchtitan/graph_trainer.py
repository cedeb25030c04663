"""The graph trainer (`--module graph_trainer.<model>`): it traces the step into one graph, transforms it, and runs that.

Its passes work on fake tensors of their own and look for the fake mode that is active. In a real job that is theirs or
none; here it would be the one that the whole run stands on, so it is put aside while they work. What the graph then
does when it runs is recorded like everything else.

No module is called when the graph runs. The trainer notes on each node which module it came from, for its own passes; a last pass
of ours puts that into the graph, so that memory has its module and its pass as in an eager run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily

from memtracker_sidecar import protocol
from memtracker_sidecar.adapter_api import AdapterContext

from .interface import Need, holder_of

_PASSES = Need(
    "torchtitan.experiments.graph_trainer.passes",
    "apply_graph_passes",
    "transforms the traced graph",
    required=False,
)
_TRAINER = "torchtitan.experiments.graph_trainer.trainer"
_STAGES = "torchtitan.experiments.graph_trainer.graph_pp.graph_builder"
_USERS = (_PASSES.module, _TRAINER, _STAGES)
_CAPTURE = "cudagraph_pass"
"""The pass that wraps the finished graph; nothing can be put into it after that."""


def install(context: AdapterContext) -> None:
    """Puts the run's fake mode aside while graph passes work. Does nothing without a graph trainer."""
    found = holder_of(_PASSES.module, _PASSES.attribute)
    if found is None:
        return
    function = getattr(*found)
    label = functools.partial(label_modules, place=context.modules.place)

    def outside(labels: bool) -> Callable[..., Any]:
        @functools.wraps(function)
        def applied(
            gm: Any, inputs: Any, passes: Sequence[Any], *arguments: Any, **keywords: Any
        ) -> Any:
            if labels:
                passes = _before_capture(passes, label)
            with unset_fake_temporarily():
                return function(gm, inputs, passes, *arguments, **keywords)

        return applied

    for module in _USERS:
        used = holder_of(module, _PASSES.attribute)
        if used is not None:
            context.replacements.set(
                *used,
                outside(module == _TRAINER),
                "graph passes look for the fake mode that is active",
            )


def _before_capture(passes: Sequence[Any], added: Any) -> list[Any]:
    """`passes` with `added` last, but before a pass that wraps the graph."""
    names = [getattr(getattr(each, "func", each), "__name__", "") for each in passes]
    place = names.index(_CAPTURE) if _CAPTURE in names else len(names)
    return [*passes[:place], added, *passes[place:]]


def label_modules(gm: Any, _inputs: Any = None, *, place: Callable[[str, int], None]) -> Any:
    """Calls `place(module, pass)` in the graph wherever the module changes that the nodes came from, and `place("", …)` last.

    Module: `node.meta["custom"]["module_fqn"]` (common_utils.py, `annotate_module_fqns`). Pass: nodes of the backward carry
    `autograd_backward`, recomputed ones have it in their name (fsdp_passes.py, `_is_backward_or_recomputed_node`).
    """
    graph, now = gm.graph, ("", protocol.PASS_NONE)
    for node in list(graph.nodes):
        if node.op == "output":
            then = ("", protocol.PASS_NONE)
        elif node.op == "call_function":
            name = (node.meta.get("custom") or {}).get("module_fqn", "")
            then = (name, _pass_of(node)) if name else now
        else:
            continue
        if then != now:
            with graph.inserting_before(node):
                graph.call_function(place, then).meta["custom"] = {}
            now = then
    graph.lint()
    gm.recompile()
    return gm


def _pass_of(node: Any) -> int:
    if "_recomputed" in node.name:
        return protocol.PASS_RECOMPUTE
    return protocol.PASS_BACKWARD if node.meta.get("autograd_backward") else protocol.PASS_FORWARD
