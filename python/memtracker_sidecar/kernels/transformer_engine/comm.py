"""Communication overlapped with GEMMs (userbuffers): its buffers come from cudaMalloc or multicast, past the caching allocator.

csrc/extensions/comm_gemm_overlap.cpp, common/comm_gemm_overlap/comm_gemm_overlap.cpp.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.extension import host
from memtracker_sidecar.kernels.transformer_engine.enums import CommOverlapType
from memtracker_sidecar.kernels.transformer_engine.table import TABLE

_numbers = itertools.count(1)


class CommOverlapHelper:
    def __init__(self, world_group: Any = None, intra_node_group: Any = None) -> None:
        self.world_group = world_group
        self.intra_node_group = intra_node_group


class CommOverlapCore:
    """A communicator buffer that a GEMM reads or writes piece by piece."""

    atomic = False

    def __init__(
        self,
        buffer_shape: Sequence[int],
        buffer_dtype: torch.dtype,
        helper: Any,
        tp_size: int,
        comm_type: Any = None,
        **options: Any,
    ) -> None:
        self.shape = [int(size) for size in buffer_shape]
        self.dtype = buffer_dtype
        self.tp_size = tp_size
        self.options = options
        nbytes = self._buffer_bytes(comm_type)
        host().external(
            f"userbuffers.{type(self).__name__}.{next(_numbers)}",
            "userbuffers",
            nbytes,
            {
                "shape": str(self.shape),
                "provenance": "TransformerEngine 2.17.1 common/comm_gemm_overlap/comm_gemm_overlap.cpp: register_user_buffer_collective",
            },
        )

    def _buffer_bytes(self, _comm_type: Any) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def get_buffer(
        self, local_chunk: bool = False, shape: Sequence[int] | None = None
    ) -> torch.Tensor:
        """A view of the buffer: no new memory."""
        size = list(shape) if shape is not None else list(self.shape)
        if shape is None and local_chunk:
            size[0] //= self.tp_size
        return host().view_of_external(size, self.dtype)

    def copy_into_buffer(self, input: torch.Tensor, local_chunk: bool = False) -> None:
        return None

    def get_communication_stream(self) -> tuple[Any, Any]:
        stream = torch.cuda.current_stream()
        return stream, stream

    def is_atomic_gemm(self) -> bool:
        return self.atomic

    def is_fp8_ubuf(self) -> bool:
        return self.dtype.itemsize == 1

    def is_p2p_overlap(self) -> bool:
        return isinstance(self, CommOverlapP2PBase)

    def with_cublasmp(self) -> bool:
        return bool(self.options.get("use_cublasmp", False))

    def set_ubuf_scale_inv(self, scale_inv: Any) -> None:
        return None

    def set_buffer_params(self, quantizer: Any) -> None:
        return None


class CommOverlapBase(CommOverlapCore):
    pass


class CommOverlapP2PBase(CommOverlapCore):
    def _buffer_bytes(self, comm_type: Any) -> int:
        """A reduce-scatter holds a chunk for each rank and one more for each of the others: CommOverlapP2PBase::initialize."""
        nbytes = super()._buffer_bytes(comm_type)
        reduces = comm_type is CommOverlapType.RS
        return nbytes // self.tp_size * (2 * self.tp_size - 1) if reduces else nbytes


class CommOverlap(CommOverlapBase):
    pass


class CommOverlapP2P(CommOverlapP2PBase):
    pass


CLASSES = {
    value.__name__: value
    for value in (
        CommOverlapHelper,
        CommOverlapCore,
        CommOverlapBase,
        CommOverlapP2PBase,
        CommOverlap,
        CommOverlapP2P,
    )
}

TABLE.no_allocation("extensions/comm_gemm_overlap.cpp", "bulk_overlap_ag_with_external_gemm")


@TABLE.kernel("extensions/comm_gemm_overlap.cpp device_supports_multicast")
def device_supports_multicast(device_id: int = -1) -> bool:
    """NVLink SHARP multicast needs Hopper or newer behind NVSwitch."""
    return torch.cuda.get_device_capability()[0] >= 9


@TABLE.kernel("extensions/comm_gemm_overlap.cpp ubuf_built_with_mpi")
def ubuf_built_with_mpi() -> bool:
    return False


@TABLE.kernel("extensions/comm_gemm_overlap.cpp get_stream_priority_range")
def get_stream_priority_range(device_id: int = -1) -> tuple[int, int]:
    return 0, -5


@TABLE.kernel("common/util/multi_stream.cpp nvte_get_num_compute_streams")
def get_num_cublas_streams() -> int:
    return 4
