"""How many rows a dispatch brings to this rank: a value that the other ranks' routers compute.

A framework's adapter knows more about its routing (`stated`); without it every token picks its experts uniformly.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memtracker_sidecar.kernels.extension import assume


@dataclass(frozen=True)
class Arrivals:
    """`rows`: tokens that come here, each once. `per_expert`: rows of each local expert; a token counts for every one it chose."""

    rows: int
    per_expert: tuple[int, ...]


Counts = Callable[[int, int, int, int], Arrivals]
"""(tokens of a rank, experts a token chooses, experts of all ranks, ranks) -> what arrives."""


def equal(total: int, parts: int) -> tuple[int, ...]:
    """`total` in `parts` equal counts; remainders go to the first."""
    return tuple(total // parts + (index < total % parts) for index in range(parts))


def chance(chosen: int, experts: int, here: int) -> float:
    """That a token with `chosen` different experts of `experts`, all alike, chooses one of `here` of them."""
    chosen = min(chosen, experts)
    return 1.0 - math.comb(experts - here, chosen) / math.comb(experts, chosen)


def balanced(tokens: int, chosen: int, experts: int, ranks: int, factor: float = 1.0) -> Arrivals:
    here = experts // ranks
    rows = min(tokens * ranks, round(tokens * ranks * chance(chosen, experts, here) * factor))
    return Arrivals(rows, equal(int(tokens * chosen * factor), here))


def everything(tokens: int, chosen: int, experts: int, ranks: int) -> Arrivals:
    """Every token of the group comes here, with as many of its choices as there are experts."""
    here = experts // ranks
    return Arrivals(tokens * ranks, equal(tokens * ranks * min(chosen, here), here))


_counts: Counts | None = None


@contextlib.contextmanager
def stated(counts: Counts) -> Iterator[None]:
    """Dispatches inside bring what `counts` says."""
    global _counts
    outer, _counts = _counts, counts
    try:
        yield
    finally:
        _counts = outer


def of(tokens: int, chosen: int, experts: int, ranks: int) -> Arrivals:
    """What a dispatch brings. `chosen` 0: a routing map came, which does not tell without its values."""
    if _counts is not None:
        return _counts(tokens, chosen, experts, ranks)
    how = "" if chosen else "one of "
    assume("deep_ep.dispatch", f"every token chooses {how}its experts uniformly", -1)
    return balanced(tokens, chosen or 1, experts, ranks)
