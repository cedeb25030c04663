"""How Megatron-LM lays ranks out: `RankGenerator` of parallel_state orders the dimensions, the first of its order innermost."""

from __future__ import annotations

from typing import Any

from memtracker_sidecar.adapter_api import AdapterContext


def install(context: AdapterContext) -> None:
    """States the layout of the dense parts; experts are laid over the same ranks."""
    stated: list[bool] = []

    def make(original: Any) -> Any:
        def initialise(generator: Any, *arguments: Any, **options: Any) -> None:
            original(generator, *arguments, **options)
            if stated or generator.world_size != context.spec.world:
                return
            stated.append(True)
            sizes = dict(zip(generator.order.split("-"), generator.ordered_size, strict=True))
            context.rank_layout({name: sizes[name] for name in reversed(sizes)})

        return initialise

    context.replace(
        "megatron.core.parallel_state",
        "RankGenerator.__init__",
        make,
        "states how ranks are laid out",
    )
