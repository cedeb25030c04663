"""The one table that every file of this package adds to, and the device facts that TE's host code asks for."""

from __future__ import annotations

import torch

from memtracker_sidecar.kernels.extension import KernelTable

TABLE = KernelTable(
    module="transformer_engine_torch",
    version="TransformerEngine 2.17.1 transformer_engine/pytorch/csrc",
)


def compute_capability() -> int:
    """SM architecture as TE writes it: 90, 100, ... (common/util/cuda_runtime.cpp sm_arch)."""
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def multiprocessors() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def non_tn_fp8_gemm_supported() -> bool:
    """Whether FP8 GEMMs take any layout, so that no transposed copies are kept.

    common/gemm/cublaslt_gemm.cu nvte_is_non_tn_fp8_gemm_supported: Blackwell (10.x) and, since 2.0, 13.0 and newer.
    """
    arch = compute_capability()
    return 100 <= arch < 120 or arch >= 130
