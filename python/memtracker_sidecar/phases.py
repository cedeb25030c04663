"""Labelled spans of execution: `init/model`, `step`, `forward_backward`, `optimizer`.

A span is `with phases.phase("optimizer", step=1): ...` or a decorator; spans nest. Labels are scalars: `step`, `micro_batch`,
`chunk`, `stage`. The wire carries begin and end; what lies between belongs to the innermost open span.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from memtracker_sidecar import protocol

if TYPE_CHECKING:
    from memtracker_sidecar.emitter import EventSink

Function = TypeVar("Function", bound=Callable[..., Any])


class Phases:
    """The open phases of one process."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._start = time.monotonic_ns()
        self._open: list[tuple[int, str]] = []
        self._count = 0
        self.on_change: list[Callable[[str, bool], None]] = []
        """Called with (name, begins) after a phase begins and before it ends."""

    def microseconds(self) -> int:
        """Time since the run started."""
        return (time.monotonic_ns() - self._start) // 1000

    @property
    def path(self) -> str:
        """Names of the open phases, outermost first, joined by `/`."""
        return "/".join(name for _, name in self._open)

    def begin(self, name: str, **labels: protocol.Scalar) -> int:
        """Opens a phase by hand. Returns its id, which `end` takes."""
        self._count += 1
        phase = self._count
        self._open.append((phase, name))
        self._sink.emit(protocol.phase_begin(phase, name, labels, self.microseconds()))
        for notify in self.on_change:
            notify(name, True)
        return phase

    def end(self, phase: int) -> None:
        """Closes a phase, and the ones that were left open inside it. Closing one that is not open does nothing."""
        if not any(opened == phase for opened, _ in self._open):
            return
        while self._open:
            opened, name = self._open[-1]
            for notify in self.on_change:
                notify(name, False)
            self._open.pop()
            self._sink.emit(protocol.phase_end(opened, self.microseconds()))
            if opened == phase:
                return

    def end_all(self) -> None:
        """Closes everything that is open, as at the end of a run that failed."""
        if self._open:
            self.end(self._open[0][0])

    @contextlib.contextmanager
    def phase(self, name: str, **labels: protocol.Scalar) -> Iterator[None]:
        """Opens a phase for the length of the block."""
        opened = self.begin(name, **labels)
        try:
            yield
        finally:
            self.end(opened)

    def step(self, number: int) -> contextlib.AbstractContextManager[None]:
        """The phase of one optimizer step, numbered from 1."""
        return self.phase("step", step=number)

    def micro_batch(
        self, name: str, number: int, **labels: protocol.Scalar
    ) -> contextlib.AbstractContextManager[None]:
        """A phase of one micro-batch, numbered from 0."""
        return self.phase(name, micro_batch=number, **labels)

    def wrap(self, function: Function, name: str, **labels: protocol.Scalar) -> Function:
        """The function with a phase around each call. Inside torch.compile the function is traced as it is."""

        @functools.wraps(function)
        def with_phase(*arguments: Any, **options: Any) -> Any:
            import torch

            if torch.compiler.is_compiling():
                return function(*arguments, **options)
            with self.phase(name, **labels):
                return function(*arguments, **options)

        return with_phase  # type: ignore[return-value]
