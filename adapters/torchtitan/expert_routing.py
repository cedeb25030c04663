"""How many tokens each expert-parallel rank sends and receives, which only real router weights can tell.

Token dispatch reads its split sizes back to the host with `.tolist()`. While a dispatch runs, that call answers with a
named assumption: this rank's `tokens x top_k` rows go to the ranks of the expert-parallel group in equal parts
(remainders to the lowest ranks), and it receives as many as it sends, times `--option routing=FACTOR`. 1 is balanced
routing; 1.25 a rank whose experts are asked for a quarter more than their share.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memtracker_sidecar.adapter_api import AdapterProblem
from memtracker_sidecar.replacements import Replacements

from .interface import Need, holder_of

Report = Callable[[str, str, str], None]
"""(name, detail, assumption) -> None; called for each kind of assumption that was taken."""


def equal_parts(total: int, parts: int) -> list[int]:
    """`total` rows divided among `parts` ranks, the remainder to the lowest ranks."""
    share, remainder = divmod(total, parts)
    return [share + (1 if index < remainder else 0) for index in range(parts)]


class ExpertRouting:
    """Answers `.tolist()` of split sizes while a dispatch is open."""

    def __init__(self, factor: float, report: Report) -> None:
        if factor <= 0:
            raise AdapterProblem(
                f"option routing is {factor:g}; a factor above 0 is expected: routing=1.25"
            )
        self._factor = factor
        self._report = report
        self._rows: int | None = None
        self._reads = 0

    @contextlib.contextmanager
    def dispatch(self, rows: int) -> Iterator[None]:
        """`rows`: what this rank sends in all, i.e. local tokens x top_k."""
        outer = (self._rows, self._reads)
        self._rows, self._reads = rows, 0
        try:
            yield
        finally:
            self._rows, self._reads = outer

    def splits(self, tensor: torch.Tensor) -> list[int] | None:
        """The list that stands for `tensor.tolist()`, or None when it is no split of an open dispatch.

        Both generations read the sizes to send first and the sizes to receive second (token_dispatcher.py,
        `_sync_token_count_exchange`; expert_parallel.py, `_token_dispatch`); only the second is scaled.
        """
        if self._rows is None or tensor.dim() != 1 or tensor.is_floating_point():
            return None
        rows = self._rows if self._reads == 0 else round(self._rows * self._factor)
        self._reads += 1
        self._report(
            "expert routing",
            f"{tensor.numel()} expert-parallel ranks",
            f"rows are sent in equal parts; this rank receives {self._factor:g} times what it sends",
        )
        return equal_parts(rows, tensor.numel())


NEEDS_BY_GENERATION: dict[str, tuple[Need, ...]] = {
    "config registry": (
        Need(
            "torchtitan.models.common.token_dispatcher",
            "AllToAllTokenDispatcher.dispatch",
            "expert routing",
            False,
        ),
    ),
    "train spec": (
        Need(
            "torchtitan.distributed.expert_parallel",
            "ExpertParallel._token_dispatch",
            "expert routing",
            False,
        ),
        Need(
            "torchtitan.models.moe.moe",
            "_run_experts_for_loop",
            "expert routing",
            False,
        ),
    ),
}


def install(replacements: Replacements, routing: ExpertRouting) -> None:
    """Opens `routing.dispatch` around the functions of whichever generation the checkout is."""
    to_list = FakeTensor.tolist

    def tolist(tensor: FakeTensor) -> Any:
        splits = routing.splits(tensor)
        return to_list(tensor) if splits is None else splits

    replacements.set(
        FakeTensor, "tolist", tolist, "split sizes of expert routing come from a named assumption"
    )

    def around(module: str, attribute: str, rows: Callable[[tuple[Any, ...]], int]) -> None:
        found = holder_of(module, attribute)
        if found is None:
            return
        holder, name = found
        function = getattr(holder, name)

        @functools.wraps(function)  # distribute_module counts the parameters of its hooks
        def with_routing(*arguments: Any, **keywords: Any) -> Any:
            with routing.dispatch(rows(arguments)):
                return function(*arguments, **keywords)

        replacements.set(holder, name, with_routing, "tells how many rows a dispatch sends")

    # dispatch(self, x_TD, topk_scores_TK, topk_expert_ids_TK, …)
    around(
        "torchtitan.models.common.token_dispatcher",
        "AllToAllTokenDispatcher.dispatch",
        lambda arguments: int(arguments[3].numel()),
    )
    # _token_dispatch(self, module, (routed_input, num_tokens_per_expert), device_mesh)
    around(
        "torchtitan.distributed.expert_parallel",
        "ExpertParallel._token_dispatch",
        lambda arguments: int(arguments[2][0].shape[0]),
    )
    # _run_experts_for_loop(w1, w2, w3, x, num_tokens_per_expert)
    around(
        "torchtitan.models.moe.moe",
        "_run_experts_for_loop",
        lambda arguments: int(arguments[3].shape[0]),
    )
