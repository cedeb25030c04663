"""How TorchTitan lays ranks out: pipeline stages outermost, then data, context and tensor parallelism (ParallelDims.build_mesh)."""

from __future__ import annotations

import importlib
from typing import Any

from memtracker_sidecar.adapter_api import AdapterContext

_MODULES = ("torchtitan.distributed.parallel_dims", "torchtitan.parallelisms.parallel_dims")
"""Of today, and of 2024."""
_OUTERMOST_FIRST = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


def install(context: AdapterContext) -> None:
    """States the layout when the checkout has settled its degrees (-1 for "the rest" is resolved then)."""
    for name in _MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        original = module.ParallelDims.__post_init__

        def settled(dims: Any, original: Any = original) -> None:
            original(dims)
            context.rank_layout({each: int(getattr(dims, each)) for each in _OUTERMOST_FIRST})

        context.replacements.set(
            module.ParallelDims, "__post_init__", settled, "states how ranks are laid out"
        )
        return
