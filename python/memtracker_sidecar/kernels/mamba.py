"""Mamba: the compiled modules under the Python packages mamba-ssm and causal-conv1d.

Both packages are Python and Triton over one small compiled module each; what they allocate, they allocate in Python, and that
runs as it is. They can be installed without CUDA (CAUSAL_CONV1D_SKIP_CUDA_BUILD, MAMBA_SKIP_CUDA_BUILD).

causal-conv1d 1.6.2 csrc/causal_conv1d.cpp: outputs are arguments; a deterministic backward makes workspaces.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import torch

from memtracker_sidecar.kernels.extension import ExtensionModule, KernelTable
from memtracker_sidecar.kernels.packages import installed, module
from memtracker_sidecar.workspace_rules import Call, Workspace, WorkspaceRules, argument

CONVOLUTION = KernelTable("causal_conv1d_cuda", "causal-conv1d 1.6.2 csrc/causal_conv1d.cpp")
CONVOLUTION.no_allocation(
    "causal_conv1d.cpp", "causal_conv1d_fwd", "causal_conv1d_bwd", "causal_conv1d_update"
)
_SOURCE = "causal-conv1d 1.6.2, csrc/causal_conv1d.cpp, causal_conv1d_bwd"


def deterministic() -> bool:
    """causal_conv1d.cpp and mamba_ssm/utils/determinism.py, use_deterministic_mode."""
    stated = os.environ.get("CAUSAL_CONV1D_DETERMINISTIC")
    return stated[0] == "1" if stated else torch.are_deterministic_algorithms_enabled()


def _backward(call: Call) -> Iterable[Workspace]:
    """A partial sum of the gradients of weight and bias for each batch, and for each chunk where channels come last."""
    if not deterministic():
        return ()
    x, weight = argument(call, "x"), argument(call, "weight")
    batch, channels, length = x.shape
    channels_last = x.stride(1) == 1 and x.stride(2) > 1
    parts = -(-length // (64 if length <= 128 else 128)) if channels_last else 1
    sums = [
        Workspace(batch * parts * channels * weight.shape[-1] * 4, "weight sums", "before", _SOURCE)
    ]
    if argument(call, "bias") is not None:
        sums.append(Workspace(batch * parts * channels * 4, "bias sums", "before", _SOURCE))
    return sums


def install(rules: WorkspaceRules) -> dict[str, str]:
    """Puts the compiled modules in place. Returns what was found of the packages."""
    for name, table in (("causal_conv1d_cuda", CONVOLUTION), ("selective_scan_cuda", None)):
        if name not in sys.modules:
            module(name, instead=ExtensionModule(name, table))
    rules.add(("DaoAILab::_causal_conv1d_bwd_cpp",), _backward)
    return {
        name: "installed" if installed(name) else "not found"
        for name in ("mamba_ssm", "causal_conv1d")
    }
