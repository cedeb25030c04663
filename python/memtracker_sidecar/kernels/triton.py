"""Triton: every launch is a no-op, and an autotuner takes the first configuration without trying any.

Kernels written in Triton write into tensors that their Python callers allocated, so a library of Triton kernels needs no
rules of its own. What Triton's runtime would do with a driver (compile, load, benchmark) does not happen.
"""

from __future__ import annotations

from typing import Any

from memtracker_sidecar.replacements import Replacements


def install(replacements: Replacements) -> bool:
    """False where Triton is not installed (the CPU build of PyTorch)."""
    try:
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.jit import JITFunction
    except ImportError:
        return False

    def launch(_self: Any, *_args: Any, **_kwargs: Any) -> None:
        return None

    reason = "a Triton launch writes into tensors that exist already; without a GPU there is nothing to run"
    for owner in (JITFunction, Autotuner, Heuristics):
        replacements.set(owner, "run", launch, reason)
    return True
