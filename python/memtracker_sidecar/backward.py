"""The start and the end of each backward pass: `loss.backward()`, `torch.autograd.backward`, `torch.autograd.grad`.

All of them go through one function of PyTorch. A backward inside a backward (reentrant checkpointing) is part of the outer one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.graph as graph

from memtracker_sidecar.replacements import Replacements


class BackwardPasses:
    """Tells listeners of each outermost backward pass: called with True when it begins and False when it ends."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[bool], None]] = []

    def install(self, replacements: Replacements) -> None:
        original = graph._engine_run_backward

        @functools.wraps(original)
        def run_backward(*arguments: Any, **options: Any) -> Any:
            if torch._C._current_graph_task_id() != -1 or torch.compiler.is_compiling():
                return original(*arguments, **options)
            for listener in self.listeners:
                listener(True)
            try:
                return original(*arguments, **options)
            finally:
                for listener in reversed(self.listeners):
                    listener(False)

        replacements.set_everywhere(
            graph, "_engine_run_backward", run_backward, "marks where a backward begins and ends"
        )

    @contextlib.contextmanager
    def unheard(self) -> Iterator[None]:
        """For a backward of the sidecar's own: nobody is told."""
        listeners, self.listeners = self.listeners, []
        try:
            yield
        finally:
            self.listeners = listeners
