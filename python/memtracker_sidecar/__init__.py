"""Runs real training code for one rank of a job under FakeTensorMode and streams every storage event.

Training code may mark its own phases; outside of a trace the marks do nothing:

    import memtracker_sidecar
    with memtracker_sidecar.phase("evaluation", step=3):
        ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

Mark = Callable[..., contextlib.AbstractContextManager[None]]

_mark: Mark | None = None


def phase(
    name: str, **labels: str | int | float | bool | None
) -> contextlib.AbstractContextManager[None]:
    """A labelled span of the training code. Does nothing when the code is not being traced."""
    return contextlib.nullcontext() if _mark is None else _mark(name, **labels)


def set_phase_marker(mark: Mark | None) -> None:
    """Connects `phase` to a run (None: disconnects it)."""
    global _mark
    _mark = mark
