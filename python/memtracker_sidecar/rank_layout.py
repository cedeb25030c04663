"""How the job's ranks are laid out, and along which dimensions their memory can differ.

Stated by adapters that know it; for plain scripts found from the process groups and device meshes that they make. A reader of
the trace then looks at one rank for each role instead of at every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink

PIPELINE_NAMES = ("pp", "pipe", "pipeline", "stage")
"""Names that scripts give to the dimension of pipeline stages."""

CONTEXT_NAMES = ("cp", "context")
"""Names of context parallelism. With a causal mask, ring attention runs another number of full and half steps on each rank:
torch/distributed/tensor/experimental/_context_parallel/_attention.py, _templated_ring_attention; TransformerEngine,
attention/dot_product_attention/context_parallel.py, AttnFuncWithCPAndKVP2P."""


class RankLayout:
    """Reports the layout as facts of topic `layout`; a later statement replaces an earlier one."""

    def __init__(self, sink: EventSink, world: int) -> None:
        self._sink = sink
        self._world = world
        self._dimensions = 0
        self._stated = False

    def state(
        self,
        dimensions: Mapping[str, int],
        differing: Sequence[str],
        uneven: Sequence[str] = (),
    ) -> None:
        """States the layout.

        Args:
            dimensions: name to size, outermost first, so that ranks of the last one are neighbours. Its product is the world.
            differing: dimensions whose coordinates run different code or shapes (pipeline stages).
            uneven: dimensions of which the first and the last coordinate are the extremes (context parallelism).
        """
        self._stated = True
        self._emit(list(dimensions), list(dimensions.values()), list(differing), list(uneven))

    def group_made(self, ranks: Sequence[int]) -> None:
        """A process group: one over the world is data parallelism; a smaller one needs a mesh to explain it."""
        if self._stated or self._dimensions > 1:
            return
        if len(ranks) == self._world:
            self._dimensions = 1
            self._emit(["ranks"], [self._world], [], [])
        elif self._dimensions == 1:
            self._dimensions = 0
            self._emit([], [], [], [])

    def mesh_made(self, mesh: Any) -> None:
        """A device mesh over all ranks, by the names of its dimensions."""
        shape = tuple(int(size) for size in mesh.shape)
        names = mesh.mesh_dim_names
        if self._stated or mesh.size() != self._world or len(shape) < max(1, self._dimensions):
            return
        if names is None:
            names = [f"dim{index}" for index in range(len(shape))]
        self._dimensions = len(shape)
        self._emit(
            list(names),
            list(shape),
            [name for name in names if name in PIPELINE_NAMES],
            [name for name in names if name in CONTEXT_NAMES],
        )

    def _emit(
        self, names: list[str], sizes: list[int], differing: list[str], uneven: list[str]
    ) -> None:
        facts: protocol.Fields = {
            "dims": names,
            "sizes": sizes,
            "differing": differing,
            "uneven": uneven,
        }
        self._sink.emit(protocol.run("layout", facts))
