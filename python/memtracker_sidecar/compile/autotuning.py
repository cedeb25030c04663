"""Which of several kernels Inductor takes (`max_autotune`), where none can be measured.

torch/_inductor/select_algorithm.py runs every candidate on the GPU and takes the fastest; with equal times it takes the first,
which its heuristics put there. All candidates write the same outputs. A graph that is compiled ahead of its first run
(torch/_inductor/standalone_compile.py) measures the launch settings of its Triton kernels in a block of code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memtracker_sidecar.replacements import Replacements


def install(replacements: Replacements, uncovered: Callable[..., None]) -> None:
    """Replaces the measuring of candidates."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    def benchmark(
        self: Any, choices: Sequence[Any], *_arguments: Any, **_options: Any
    ) -> dict[Any, float]:
        del self
        uncovered(
            "feature",
            "Inductor autotuning",
            detail=f"{len(choices)} candidates for {choices[0].name} would be measured on the GPU",
            assumption="the first candidate is taken, and what measuring allocates is not counted",
            once_for="Inductor autotuning",
        )
        return {choice: 1.0 for choice in choices}

    reason = "there is no GPU to measure candidates on"
    replacements.set(AlgorithmSelectorCache, "benchmark", benchmark, reason)
    replacements.set(
        PythonWrapperCodegen, "generate_and_run_autotune_block", lambda _wrapper: None, reason
    )
