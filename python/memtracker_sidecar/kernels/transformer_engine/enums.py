"""Enumerations and plain classes of `transformer_engine_torch`, with the values of the C headers.

TransformerEngine 2.17.1: common/include/transformer_engine/{transformer_engine,fused_attn,comm_gemm_overlap,fused_router}.h,
common/util/pybind_helper.h, pytorch/csrc/{common.h,extensions/pybind.cpp}.
"""

from __future__ import annotations

import enum
from typing import Any

import torch


class DType(enum.IntEnum):
    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


TORCH_DTYPE: dict[int, torch.dtype] = {
    DType.kByte: torch.uint8,
    DType.kInt32: torch.int32,
    DType.kFloat32: torch.float32,
    DType.kFloat16: torch.float16,
    DType.kBFloat16: torch.bfloat16,
    DType.kFloat8E4M3: torch.float8_e4m3fn,
    DType.kFloat8E5M2: torch.float8_e5m2,
}


def torch_dtype(dtype: int | torch.dtype) -> torch.dtype:
    """GetATenDType of csrc/common.h; a torch dtype passes through."""
    return dtype if isinstance(dtype, torch.dtype) else TORCH_DTYPE[int(dtype)]


def _counted(name: str, members: str) -> Any:
    return enum.IntEnum(name, {member: value for value, member in enumerate(members.split())})


NVTE_Bias_Type = _counted(
    "NVTE_Bias_Type", "NVTE_NO_BIAS NVTE_PRE_SCALE_BIAS NVTE_POST_SCALE_BIAS NVTE_ALIBI"
)
NVTE_Mask_Type = _counted(
    "NVTE_Mask_Type",
    "NVTE_NO_MASK NVTE_PADDING_MASK NVTE_CAUSAL_MASK NVTE_PADDING_CAUSAL_MASK "
    "NVTE_CAUSAL_BOTTOM_RIGHT_MASK NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK",
)
NVTE_Softmax_Type = _counted(
    "NVTE_Softmax_Type", "NVTE_VANILLA_SOFTMAX NVTE_OFF_BY_ONE_SOFTMAX NVTE_LEARNABLE_SOFTMAX"
)
NVTE_QKV_Format = _counted(
    "NVTE_QKV_Format",
    "NVTE_SBHD NVTE_BSHD NVTE_THD NVTE_BSHD_2SBHD NVTE_SBHD_2BSHD NVTE_THD_2BSHD NVTE_THD_2SBHD "
    "NVTE_BHSD NVTE_QKV_Format_NOT_SET",
)
NVTE_QKV_Layout = _counted(
    "NVTE_QKV_Layout",
    "NVTE_SB3HD NVTE_SBH3D NVTE_SBHD_SB2HD NVTE_SBHD_SBH2D NVTE_SBHD_SBHD_SBHD "
    "NVTE_BS3HD NVTE_BSH3D NVTE_BSHD_BS2HD NVTE_BSHD_BSH2D NVTE_BSHD_BSHD_BSHD "
    "NVTE_T3HD NVTE_TH3D NVTE_THD_T2HD NVTE_THD_TH2D NVTE_THD_THD_THD "
    "NVTE_SBHD_BSHD_BSHD NVTE_BSHD_SBHD_SBHD NVTE_THD_BSHD_BSHD NVTE_THD_SBHD_SBHD "
    "NVTE_Paged_KV_BSHD_BSHD_BSHD NVTE_Paged_KV_BSHD_SBHD_SBHD NVTE_Paged_KV_SBHD_BSHD_BSHD "
    "NVTE_Paged_KV_SBHD_SBHD_SBHD NVTE_Paged_KV_THD_BSHD_BSHD NVTE_Paged_KV_THD_SBHD_SBHD "
    "NVTE_BHSD_BHSD_BHSD",
)


class NVTE_Fused_Attn_Backend(enum.IntEnum):
    NVTE_No_Backend = -1
    NVTE_F16_max512_seqlen = 0  # gone since 2.14; older Python sources still name it
    NVTE_F16_arbitrary_seqlen = 1
    NVTE_FP8 = 2


NVTERoutingMapFormat = _counted("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8")
Float8BlockScaleTensorFormat = _counted(
    "Float8BlockScaleTensorFormat", "GEMM_READY COMPACT INVALID"
)
CommOverlapType = _counted("CommOverlapType", "RS AG")
CommOverlapAlgo = _counted(
    "CommOverlapAlgo",
    "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS SPLIT_PIPELINED_RS_P2P "
    "ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P EXTERNAL_BULK_OVERLAP_AG",
)
FP8FwdTensors = _counted(
    "FP8FwdTensors",
    "GEMM1_INPUT GEMM1_WEIGHT GEMM1_OUTPUT GEMM2_INPUT GEMM2_WEIGHT GEMM2_OUTPUT "
    "GEMM3_INPUT GEMM3_WEIGHT GEMM3_OUTPUT",
)
FP8BwdTensors = _counted(
    "FP8BwdTensors",
    "GRAD_OUTPUT1 GRAD_INPUT1 GRAD_OUTPUT2 GRAD_INPUT2 GRAD_OUTPUT3 GRAD_INPUT3",
)


class FP8TensorMeta:
    """Scales and amax history of the delayed-scaling recipe; the Python side fills them in."""

    def __init__(self) -> None:
        self.scale: torch.Tensor | None = None
        self.scale_inv: torch.Tensor | None = None
        self.amax_history: torch.Tensor | None = None


CONSTANTS = {
    value.__name__: value
    for value in (
        DType,
        NVTE_Bias_Type,
        NVTE_Mask_Type,
        NVTE_Softmax_Type,
        NVTE_QKV_Format,
        NVTE_QKV_Layout,
        NVTE_Fused_Attn_Backend,
        NVTERoutingMapFormat,
        Float8BlockScaleTensorFormat,
        CommOverlapType,
        CommOverlapAlgo,
        FP8FwdTensors,
        FP8BwdTensors,
        FP8TensorMeta,
    )
}
