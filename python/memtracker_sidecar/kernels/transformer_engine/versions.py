"""Versions that TE's Python side asks its libraries for: those of the CUDA libraries that torch 2.14.1+cu130 requires."""

from __future__ import annotations

from memtracker_sidecar.kernels.transformer_engine.attention import CUDNN_VERSION
from memtracker_sidecar.kernels.transformer_engine.table import TABLE


@TABLE.kernel("extensions/misc.cpp get_cublasLt_version")
def get_cublasLt_version() -> int:
    return 130101  # nvidia-cublas 13.1.1


@TABLE.kernel("extensions/misc.cpp get_cudnn_version")
def get_cudnn_version() -> int:
    return CUDNN_VERSION


TABLE.no_allocation("extensions/pybind.cpp", "init_extension")
