"""Symmetric memory (asynchronous tensor parallelism) without peers.

`torch.distributed._symmetric_memory` pipelines a collective with a matrix product: chunks are produced or consumed in turn
on the current and on a second stream, through a workspace that all ranks map. Its fused operators are Python over that
workspace. On fake tensors PyTorch would call their shape functions, which allocate other tensors on other streams; here
the real code runs, and only the workspace is pretended. A workspace is mapped by the driver (cuMemCreate), not by the
caching allocator, so it is reported as external memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.recorder import StorageRecorder
from memtracker_sidecar.replacements import Replacements

_FUSED = (
    "fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter",
)
_MAPPING_GRANULE = 2 * 2**20
"""Bytes; cuMemGetAllocationGranularity of a GPU (torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemory.cu rounds to it)."""


class PeerMemory:
    """Stands for _SymmetricMemory: one allocation that every rank of a group maps."""

    def __init__(self, space: SymmetricMemory, rank: int, world_size: int, size: int) -> None:
        self._space = space
        self.rank = rank
        self.world_size = world_size
        self.buffer_size = size
        self.multicast_ptr = 0

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> torch.Tensor:
        del rank, storage_offset
        return self._space.view(tuple(sizes), dtype)

    def get_remote_tensor(
        self, peer: int, sizes: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        return self.get_buffer(peer, sizes, dtype)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        storage_offset: int = 0,
    ) -> torch.Tensor:
        del rank, storage_offset
        return self._space.view(tuple(sizes) or (1,), dtype or torch.uint32)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        del channel, timeout_ms

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        del dst_rank, channel, timeout_ms

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        del src_rank, channel, timeout_ms


class SymmetricMemory:
    """The symmetric allocations of one rank."""

    def __init__(self, sink: EventSink, recorder: StorageRecorder) -> None:
        self._sink = sink
        self._recorder = recorder
        self._workspaces: dict[str, tuple[str, PeerMemory]] = {}
        self._count = 0

    def view(self, sizes: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over memory that is reported as external."""
        with self._recorder.paused():
            tensor = torch.empty(sizes, dtype=dtype, device="cuda")
        self._recorder.ignore(tensor)
        return tensor

    def workspace(self, group_name: str, min_size: int) -> PeerMemory:
        """As get_symm_mem_workspace: one workspace a group, replaced by a larger one when it is too small."""
        known = self._workspaces.get(group_name)
        if known is not None and known[1].buffer_size >= min_size:
            return known[1]
        from torch.distributed import distributed_c10d as c10d

        group = c10d._resolve_process_group(group_name)  # type: ignore[arg-type]
        self._count += 1
        name = f"symmetric memory {self._count} of group {group_name}"
        size = -(-min_size // _MAPPING_GRANULE) * _MAPPING_GRANULE
        source = (
            "torch 2.14.1, torch/distributed/_symmetric_memory/__init__.py, get_symm_mem_workspace"
        )
        device = torch.cuda.current_device() + 1
        self._sink.emit(
            protocol.external_alloc(
                name, device, "library", size, {"evidence": "source", "provenance": source}
            )
        )
        if known is not None:  # the smaller one is held until the larger one is there
            self._sink.emit(protocol.external_free(known[0]))
        made = PeerMemory(self, group.rank(), group.size(), min_size)
        self._workspaces[group_name] = (name, made)
        return made

    def install(self, replacements: Replacements) -> None:
        """Runs the fused operators' own code over pretended workspaces."""
        import torch.distributed._symmetric_memory as symmetric

        reason = "there are no peers to map memory of"
        replacements.set(symmetric, "get_symm_mem_workspace", self.workspace, reason)
        replacements.set(symmetric, "enable_symm_mem_for_group", lambda _group_name: None, reason)
        replacements.set(
            symmetric, "is_symm_mem_enabled_for_group", lambda _group_name: True, reason
        )
        replacements.set(symmetric, "rendezvous", lambda _tensor, _group=None: None, reason)
        replacements.set(
            symmetric, "_should_use_multimem_all_gather_matmul", lambda *_: False, reason
        )
        streams: dict[int, Any] = {}

        def backend_stream(priority: int = 0) -> Any:
            return streams.setdefault(priority, torch.cuda.Stream(priority=priority))

        replacements.set(
            symmetric, "_get_backend_stream", backend_stream, "is a stream of the pretended GPU"
        )
        replacements.set(torch.cuda, "_sleep", lambda _cycles: None, "nothing runs")
        for name in _FUSED:
            packet = getattr(torch.ops.symm_mem, name, None)
            code = getattr(symmetric, f"_{name}", None)
            if packet is None or code is None:
                continue
            self._recorder.policies[packet.default] = self._run(code)

    def _run(self, code: Any) -> Any:
        def policy(_func: Any, args: Any, kwargs: Any) -> Any:
            first = args[0] if args else None
            if not isinstance(first, FakeTensor) or first.fake_mode is not self._recorder.fake_mode:
                return NotImplemented  # a compiler asks for the shape only
            with self._recorder.inside_policy():
                return code(*args, **kwargs)

        return policy
