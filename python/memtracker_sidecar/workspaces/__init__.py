"""Workspaces of PyTorch's own CUDA kernels, one family of operators a file.

Each rule restates what the host code of the kernel allocates. The test of these rules runs that host code itself, over a CUDA
runtime without a GPU, and compares what it asked the caching allocator for (python/tests/test_kernel_workspaces.py).
"""

from __future__ import annotations

from memtracker_sidecar.fake_cuda.device import threads_per_multiprocessor
from memtracker_sidecar.worker_spec import GpuProperties
from memtracker_sidecar.workspace_rules import GpuLimits, WorkspaceRules
from memtracker_sidecar.workspaces import attention, cublas, foreach, indexing, reduction, sorting


def gpu_limits(gpu: GpuProperties) -> GpuLimits:
    """What the rules need to know of a GPU."""
    return GpuLimits(
        capability=gpu.capability,
        multiprocessors=gpu.multi_processor_count,
        threads_per_multiprocessor=threads_per_multiprocessor(gpu.capability),
    )


def default_rules() -> WorkspaceRules:
    """The rules that hold for every PyTorch program."""
    rules = WorkspaceRules()
    for family in (cublas, reduction, attention, indexing, sorting, foreach):
        family.register(rules)
    return rules
