"""torch.compile on fake tensors: the real Dynamo, the real AOTAutograd partitioner, the real Inductor; only kernels do not run.

What compilation does to memory is decided before any kernel exists: which intermediate results the partitioner saves for
the backward, which temporaries fusion makes unnecessary, which buffers Inductor's wrapper reuses, in which order it
allocates and frees. All of that is ordinary Python that needs shapes and no values, so it runs as it is. The generated
wrapper then runs on fake tensors, allocation by allocation, and the recorder sees it like any other code.

`dynamo` makes tracing work under the recorder's modes, `inductor` replaces what Inductor would ask of a GPU, `autotuning` what
it would measure on one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._utils_internal

from memtracker_sidecar.replacements import Replacements


class Compilation:
    """Prepares PyTorch's compiler when the training code first asks for it, because importing it takes seconds."""

    def __init__(self, replacements: Replacements, uncovered: Callable[..., None]) -> None:
        self._replacements = replacements
        self._uncovered = uncovered
        self._ready = False

    def install(self) -> None:
        """Intercepts `torch.compile` and `nn.Module.compile`."""
        original = torch.compile

        def compile(model: Any = None, **options: Any) -> Any:
            self.prepare()
            return original(model, **options)

        self._replacements.set(torch, "compile", compile, "the compiler runs without a GPU")
        compile_module = torch.nn.Module.compile

        def compile_in_place(module: torch.nn.Module, *arguments: Any, **options: Any) -> None:
            self.prepare()
            compile_module(module, *arguments, **options)

        # Graph passes order collectives by estimated run times. 1980 MHz: maximal SM clock of an H100 SXM (nvidia-smi -q).
        self._replacements.set(
            torch._utils_internal,
            "max_clock_rate",
            lambda: 1980,
            "asks nvidia-smi for the GPU's clock",
        )
        self._replacements.set(
            torch.nn.Module,
            "compile",
            compile_in_place,
            "the compiler runs without a GPU",
        )

    def prepare(self) -> None:
        """Imports the compiler and replaces what would need a GPU. Does nothing the second time."""
        if self._ready:
            return
        self._ready = True
        from memtracker_sidecar.compile import autotuning, dynamo, inductor

        dynamo.install(self._replacements)
        autotuning.install(self._replacements, self._uncovered)
        inductor.install(self._replacements, self._uncovered)
