"""The graph trainer (`--module graph_trainer.<model>`): it traces the step into one graph, transforms it, and runs that.

Its passes work on fake tensors of their own and look for the fake mode that is active. In a real job that is theirs or
none; here it would be the one that the whole run stands on, so it is put aside while they work. What the graph then
does when it runs is recorded like everything else.
"""

from __future__ import annotations

import functools
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily

from memtracker_sidecar.replacements import Replacements

from .interface import Need, holder_of

_PASSES = Need(
    "torchtitan.experiments.graph_trainer.passes",
    "apply_graph_passes",
    "transforms the traced graph",
    required=False,
)
_USERS = (
    "torchtitan.experiments.graph_trainer.passes",
    "torchtitan.experiments.graph_trainer.trainer",
)


def install(replacements: Replacements) -> None:
    """Puts the run's fake mode aside while graph passes work. Does nothing without a graph trainer."""
    found = holder_of(_PASSES.module, _PASSES.attribute)
    if found is None:
        return
    function = getattr(*found)

    @functools.wraps(function)
    def outside(*arguments: Any, **keywords: Any) -> Any:
        with unset_fake_temporarily():
            return function(*arguments, **keywords)

    for module in _USERS:
        used = holder_of(module, _PASSES.attribute)
        if used is not None:
            replacements.set(*used, outside, "graph passes look for the fake mode that is active")
