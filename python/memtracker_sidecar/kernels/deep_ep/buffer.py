"""DeepEP's `Buffer`: dispatch and combine over NVLink and RDMA.

DeepEP 1.2.1: deep_ep/buffer.py (the Python class), csrc/deep_ep.cpp (what each call allocates, on which stream),
csrc/config.hpp (sizes of the communication buffers), csrc/kernels/configs.cuh (constants). The communication buffers come
from cudaMalloc and NVSHMEM, past the caching allocator.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from memtracker_sidecar.kernels.deep_ep import arrivals
from memtracker_sidecar.kernels.extension import assume, host

NVLINK_PEERS = 8  # NUM_MAX_NVL_PEERS
WORKSPACE_BYTES = 32 * 2**20  # NUM_WORKSPACE_BYTES
HEAP_GRANULE = 2**29  # buffer.py: NVSHMEM_CUMEM_GRANULARITY
SOURCE_META_BYTES = 8  # csrc/kernels/internode.cu, SourceMeta: two ints
MOST_TOPK = MOST_SCALES = 128  # config.hpp, kNumMaxTopK and kNumMaxScales
_numbers = itertools.count(1)
_SOURCE = "DeepEP 1.2.1 csrc/deep_ep.cpp"


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


class EventHandle:
    """A recorded event of the current stream, or of `stream`."""

    def __init__(self, stream: Any = None) -> None:
        self.event = torch.cuda.Event()
        self.event.record(stream or torch.cuda.current_stream())

    def current_stream_wait(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """deep_ep/utils.py: an event that may be missing, and tensors to keep until it is waited for."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: Any = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        assert self.event is not None
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.event is not None:
            self.event.current_stream_wait()


class Config:
    """csrc/config.hpp, Config: chunk sizes in tokens, and the sizes of buffers (bytes) that follow from them."""

    def __init__(
        self, num_sms: int, nvl_send: int, nvl_recv: int, rdma_send: int, rdma_recv: int
    ) -> None:
        self.num_sms = num_sms
        self.nvl_send, self.nvl_recv = nvl_send, nvl_recv
        self.rdma_send, self.rdma_recv = rdma_send, _up(rdma_recv, rdma_send)

    @property
    def channels(self) -> int:
        return self.num_sms // 2

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        rdma, nvl = max(num_ranks // NVLINK_PEERS, 1), min(num_ranks, NVLINK_PEERS)
        per_token = hidden_bytes + SOURCE_META_BYTES + MOST_TOPK * (8 + 4) + MOST_SCALES * 4
        size = self.channels * nvl * ((2 * rdma + 3) * 4 + self.nvl_recv * per_token)
        return _up(size, 128)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        if num_ranks <= NVLINK_PEERS:
            return 0
        per_token = hidden_bytes + SOURCE_META_BYTES + MOST_TOPK * (8 + 4) + MOST_SCALES * 4 + 16
        ranks = num_ranks // NVLINK_PEERS
        size = self.channels * ranks * 2 * ((NVLINK_PEERS * 2 + 2) * 4 + self.rdma_recv * per_token)
        return _up(size, 128)


_DISPATCH = {
    2: (24, 256, 6, 128),
    4: (6, 256, 6, 128),
    8: (6, 256, 6, 128),
    16: (36, 288, 20, 128),
    24: (8, 288, 32, 128),
    32: (32, 288, 32, 128),
    64: (20, 288, 28, 128),
    128: (20, 560, 32, 128),
    144: (32, 720, 12, 128),
    160: (28, 720, 12, 128),
}
_COMBINE = {
    2: (10, 256, 6, 128),
    4: (9, 256, 6, 128),
    8: (4, 256, 6, 128),
    16: (4, 288, 12, 128),
    24: (1, 288, 8, 128),
    32: (1, 288, 8, 128),
    64: (1, 288, 20, 128),
    128: (1, 560, 12, 128),
    144: (2, 720, 8, 128),
    160: (2, 720, 8, 128),
}


class Buffer:
    """Stands for deep_ep.Buffer. The low-latency calls of inference are not here."""

    num_sms = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        **_options: Any,
    ) -> None:
        self.group = group
        self.rank, self.group_size = group.rank(), group.size()
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.comm_stream = torch.cuda.Stream(priority=-1)
        self._external()
        for exchanged in (torch.cuda.current_device(), bytearray(64)):
            gathered: list[Any] = [None] * self.group_size
            dist.all_gather_object(gathered, exchanged, group)

    def _external(self) -> None:
        name = f"deep_ep.{next(_numbers)}"
        pointers = NVLINK_PEERS * (4 + 8 + 8)
        nvl = self.num_nvl_bytes + pointers if self.num_nvl_bytes else 0
        sizes = {"nvlink": nvl, "workspace": WORKSPACE_BYTES}
        if self.num_rdma_bytes:
            sizes["nvshmem heap"] = _up(self.num_rdma_bytes, HEAP_GRANULE)
            assume(
                "nvshmem",
                "NVSHMEM holds its symmetric heap in granules of 512 MiB and nothing else",
                -1,
                "DeepEP's RDMA buffer",
            )
        for part, nbytes in sizes.items():
            if nbytes:
                host().external(
                    f"{name}.{part}", "deep_ep", nbytes, {"part": part, "provenance": _SOURCE}
                )

    @property
    def internode(self) -> bool:
        return self.group_size > NVLINK_PEERS

    @classmethod
    def set_num_sms(cls, new_num_sms: int) -> None:
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(EventHandle())

    @staticmethod
    def is_sm90_compiled() -> bool:
        return True

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return _config(_DISPATCH, num_ranks)

    @staticmethod
    def get_combine_config(num_ranks: int) -> Config:
        return _config(_COMBINE, num_ranks)

    def get_comm_stream(self) -> Any:
        return self.comm_stream

    @contextlib.contextmanager
    def _call(self, name: str, previous: Any, on_comm_stream: bool) -> Iterator[None]:
        """The communication stream waits; allocations go to it when asked."""
        event = getattr(previous, "event", None)
        if event is None:
            self.comm_stream.wait_stream(torch.cuda.current_stream())
        else:
            self.comm_stream.wait_event(event.event)
        where = torch.cuda.stream(self.comm_stream) if on_comm_stream else contextlib.nullcontext()
        with host().operator(f"deep_ep_cpp::{name}"), where:
            yield

    def _finish(
        self, tensors: Iterable[torch.Tensor | None], asynchronous: bool, on_comm_stream: bool
    ) -> EventOverlap:
        compute = torch.cuda.current_stream()
        if not asynchronous:
            compute.wait_stream(self.comm_stream)
            return EventOverlap(None)
        event = EventHandle(self.comm_stream)
        for tensor in tensors:
            if tensor is not None:
                tensor.record_stream(self.comm_stream)
                if on_comm_stream:
                    tensor.record_stream(compute)
        return EventOverlap(event)

    def get_dispatch_layout(
        self,
        topk_idx: torch.Tensor,
        num_experts: int,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        with self._call("get_dispatch_layout", previous_event, allocate_on_comm_stream):
            per_rank = _ints(self.group_size)
            per_expert = _ints(num_experts)
            in_rank = torch.empty(
                (topk_idx.size(0), self.group_size), dtype=torch.bool, device="cuda"
            )
            per_node = _ints(self.group_size // NVLINK_PEERS) if self.internode else None
        event = self._finish(
            (topk_idx, per_rank, per_expert, in_rank, per_node),
            async_finish,
            allocate_on_comm_stream,
        )
        return per_rank, per_node, per_expert, in_rank, event

    def dispatch(
        self,
        x: Any,
        handle: tuple[Any, ...] | None = None,
        num_tokens_per_rank: torch.Tensor | None = None,
        num_tokens_per_rdma_rank: torch.Tensor | None = None,
        is_token_in_rank: torch.Tensor | None = None,
        num_tokens_per_expert: torch.Tensor | None = None,
        topk_idx: torch.Tensor | None = None,
        topk_weights: torch.Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Config | None = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """(received x, its expert indices, its weights, counts of local experts, handle, event)."""
        config = config or self.get_dispatch_config(self.group_size)
        values, scales = x if isinstance(x, tuple) else (x, None)
        counts: list[int] | None = None
        if handle is None:
            assert topk_idx is not None and num_tokens_per_expert is not None
            came = arrivals.of(
                values.size(0), topk_idx.size(1), num_tokens_per_expert.size(0), self.group_size
            )
            rows = num_worst_tokens or came.rows
            counts = [] if num_worst_tokens else [_up(n, expert_alignment) for n in came.per_expert]
        else:
            rows = handle[-1].rows
        name = "internode_dispatch" if self.internode else "intranode_dispatch"
        with self._call(name, previous_event, allocate_on_comm_stream):
            prefixes = () if handle is not None else self._prefixes(config)
            received = torch.empty((rows, values.size(1)), dtype=values.dtype, device=values.device)
            kept = (
                self._internode_kept(config, values.size(0), rows, handle)
                if self.internode
                else self._intranode_kept(config, values.size(0), rows)
            )
            indices = weights = None
            if topk_idx is not None and topk_weights is not None:
                indices = topk_idx.new_empty((rows, topk_idx.size(1)))
                weights = topk_weights.new_empty((rows, topk_weights.size(1)))
            received_scales = None
            if scales is not None:
                received_scales = scales.new_empty((rows, *scales.shape[1:]))
        event = self._finish(
            (
                values,
                scales,
                topk_idx,
                topk_weights,
                num_tokens_per_rank,
                num_tokens_per_expert,
                is_token_in_rank,
                *prefixes,
                received,
                received_scales,
                *kept,
                indices,
                weights,
            ),
            async_finish,
            allocate_on_comm_stream,
        )
        result = received if scales is None else (received, received_scales)
        if handle is not None:
            return result, None, None, None, None, event
        facts = Handle(rows, values.size(0))
        return result, indices, weights, counts, (is_token_in_rank, *prefixes, *kept, facts), event

    def _prefixes(self, config: Config) -> tuple[torch.Tensor, ...]:
        """Matrices that are made only when the layout is new."""
        ranks, channels = self.group_size, config.channels
        if not self.internode:
            return _ints(ranks, ranks), _ints(ranks, channels)
        nodes = ranks // NVLINK_PEERS
        return _ints(nodes, channels), _ints(nodes), _ints(ranks, channels), _ints(ranks)

    def _intranode_kept(self, config: Config, tokens: int, rows: int) -> tuple[torch.Tensor, ...]:
        ranks = self.group_size
        return _ints(rows), _ints(ranks, config.channels), _ints(tokens, ranks)

    def _internode_kept(
        self, config: Config, tokens: int, rows: int, handle: Any
    ) -> tuple[torch.Tensor, ...]:
        if handle is not None:
            return ()
        ranks = self.group_size
        nodes = ranks // NVLINK_PEERS
        # Tokens that come over RDMA from the same GPU of each node, before NVLink spreads them.
        forwarded = min(tokens * nodes, rows * NVLINK_PEERS)
        return (
            torch.empty((rows, SOURCE_META_BYTES), dtype=torch.uint8, device="cuda"),
            _ints(nodes, config.channels),
            _ints(ranks, config.channels),
            _ints(tokens, nodes),
            _ints(forwarded, NVLINK_PEERS),
        )

    def combine(
        self,
        x: torch.Tensor,
        handle: tuple[Any, ...],
        topk_weights: torch.Tensor | None = None,
        bias: Any = None,
        config: Config | None = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """(combined x, combined weights, event)."""
        tokens = handle[-1].tokens
        name = "internode_combine" if self.internode else "intranode_combine"
        with self._call(name, previous_event, allocate_on_comm_stream):
            weights = None
            if topk_weights is not None:
                weights = topk_weights.new_empty((tokens, topk_weights.size(1)))
            combined = torch.empty((tokens, x.size(1)), dtype=x.dtype, device=x.device)
        event = self._finish(
            (x, topk_weights, weights, combined, *handle[:-1]),
            async_finish,
            allocate_on_comm_stream,
        )
        return combined, weights, event

    def destroy(self) -> None:
        return


class Handle:
    """Numbers of a dispatch that the compiled module reads off its tensors: rows received, tokens sent."""

    def __init__(self, rows: int, tokens: int) -> None:
        self.rows = rows
        self.tokens = tokens


def _config(table: dict[int, tuple[int, int, int, int]], ranks: int) -> Config:
    if ranks not in table:
        raise AssertionError(f"Unsupported number of EP ranks: {ranks}")
    return Config(Buffer.num_sms, *table[ranks])


def _ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")
