"""Collectives of this rank: reported with kind, payload and group, and answered at once.

Every collective passes the dispatcher, whoever calls it: torch.distributed, FSDP, DTensor, DDP's reducer, batched point-to-point
calls. There it is answered without the other ranks. What PyTorch's NCCL process group does to memory is kept: an asynchronous
collective holds its tensors until its work is waited for (ProcessGroupNCCL.cpp, `WorkNCCL::stash`, the default since
TORCH_NCCL_AVOID_RECORD_STREAMS); a synchronous one runs on the current stream and holds nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.fake_cuda.streams import current_stream_id
from memtracker_sidecar.recorder import StorageRecorder
from memtracker_sidecar.tables import Tables

# Operator of the c10d namespace -> (kind, index of the argument that is the payload as NCCL counts it).
_C10D: dict[str, tuple[str, int]] = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "gather_": ("gather", 1),
    "gather_into_tensor_": ("gather", 1),
    "scatter_": ("scatter", 0),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
    "barrier": ("barrier", 0),
}

# Functional collectives -> (kind, whether the payload is the result rather than the input).
_FUNCTIONAL: dict[str, tuple[str, bool]] = {
    "all_reduce": ("all_reduce", False),
    "all_reduce_": ("all_reduce", False),
    "all_reduce_coalesced": ("all_reduce", False),
    "all_reduce_coalesced_": ("all_reduce", False),
    "all_gather_into_tensor": ("all_gather", True),
    "all_gather_into_tensor_out": ("all_gather", True),
    "all_gather_into_tensor_coalesced": ("all_gather", True),
    "reduce_scatter_tensor": ("reduce_scatter", False),
    "reduce_scatter_tensor_out": ("reduce_scatter", False),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", False),
    "all_to_all_single": ("all_to_all", False),
    "broadcast": ("broadcast", False),
    "broadcast_": ("broadcast", False),
    "isend": ("send", False),
    "irecv": ("recv", False),
}

# Kinds that leave a tensor with this rank's value where every rank had the same.
_OWN_VALUES = frozenset(("all_reduce", "reduce", "send", "barrier"))


def payload_bytes(value: Any) -> int:
    """Bytes of a tensor or of a nested list of tensors."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (list, tuple)):
        return sum(payload_bytes(item) for item in value)
    return 0


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


class PendingWork(FakeWork):  # type: ignore[misc]
    """The work of one collective: ends when it is waited for, or when nobody can wait for it any more."""

    def __init__(self, end: Callable[[], None], held: list[torch.Tensor]) -> None:
        super().__init__()
        self._end: Callable[[], None] | None = end
        self._held = held

    def finish(self) -> None:
        """The collective is over: its tensors are let go."""
        end, self._end = self._end, None
        if end is not None:
            end()
        self._held = []

    def wait(self, *_arguments: Any, **_options: Any) -> bool:
        self.finish()
        return True

    def block_current_stream(self) -> None:
        self.finish()

    def synchronize(self) -> None:
        self.finish()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def __del__(self) -> None:
        self.finish()


class Collectives:
    """The collectives of one process."""

    def __init__(
        self,
        sink: EventSink,
        tables: Tables,
        recorder: StorageRecorder,
        communicator_of: Callable[[str], int],
    ) -> None:
        self._sink = sink
        self._tables = tables
        self._recorder = recorder
        self._communicator_of = communicator_of
        self.received: Callable[[torch.Tensor], None] | None = None
        """Told of tensors that may hold another rank's values now."""
        self._ids = itertools.count(1)
        self._batched = False
        self._pending: dict[
            int, Callable[[], None]
        ] = {}  # live storage of a functional result -> its end

    def install(self) -> None:
        """Registers with the recorder."""
        policies, after = self._recorder.policies, self._recorder.after
        for name, (kind, payload) in _C10D.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is not None:
                policies[packet.default] = self._make_c10d(kind, payload, packet.default)
        for name, (kind, of_result) in _FUNCTIONAL.items():
            packet = getattr(torch.ops._c10d_functional, name, None)
            if packet is not None:
                after[packet.default] = self._make_functional(kind, of_result, packet.default)
        policies[torch.ops._c10d_functional.wait_tensor.default] = self._wait_tensor

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Sends and receives inside are of one batch: their kinds are batch_send and batch_recv."""
        before, self._batched = self._batched, True
        try:
            yield
        finally:
            self._batched = before

    def begin(
        self,
        kind: str,
        group: str,
        size: int,
        *,
        asynchronous: bool,
        device: int | None = None,
        peer: int = 0,
    ) -> Callable[[], None]:
        """Reports the start of a collective; the result reports its end. `peer`: global rank + 1 of a point-to-point call."""
        collective = next(self._ids)
        index = torch.cuda.current_device() if device is None else device
        stream = current_stream_id(index)
        emit = self._sink.emit
        if self._batched and kind in ("send", "recv"):
            kind = f"batch_{kind}"
        kind_id = self._tables.string(kind)
        emit(
            (
                protocol.COLLECTIVE_BEGIN,
                collective,
                self._communicator_of(group),
                kind_id,
                size,
                stream,
                asynchronous,
                peer,
            )
        )
        return lambda: emit((protocol.COLLECTIVE_END, collective))

    def _make_c10d(self, kind: str, payload: int, func: Any) -> Callable[[Any, Any, Any], Any]:
        names = [argument.name for argument in func._schema.arguments]
        group_index = names.index("process_group")
        async_index = names.index("async_op") if "async_op" in names else None
        peer_index = next((names.index(name) for name in ("dst", "src") if name in names), None)
        gives_tensors = len(func._schema.returns) == 2

        def collective(func: Any, args: Any, kwargs: Any) -> Any:
            values = list(args) + [kwargs[name] for name in names[len(args) :] if name in kwargs]
            group = dist.ProcessGroup.unbox(values[group_index])
            tensors = _tensors(
                [value for index, value in enumerate(values[:2]) if index != group_index]
            )
            on_gpu = any(tensor.device.type == "cuda" for tensor in tensors) or kind == "barrier"
            asynchronous = (
                async_index is None or async_index >= len(values) or bool(values[async_index])
            )
            peer = 0
            if peer_index is not None and peer_index < len(values):
                peer = dist.get_global_rank(group, int(values[peer_index])) + 1
            if on_gpu:
                end = self.begin(
                    kind,
                    group.group_name,
                    payload_bytes(values[payload]),
                    asynchronous=asynchronous,
                    peer=peer,
                )
            else:
                end = _nothing
            if kind not in _OWN_VALUES and self.received is not None:
                for tensor in tensors:
                    self.received(tensor)
            work = PendingWork(end, tensors if asynchronous and on_gpu else [])
            # C++ gives this very object to a Python caller, if there is one; it has it before the next operator.
            self._recorder.kept_until_next = work
            return (values[0], work.boxed()) if gives_tensors else work.boxed()

        return collective

    def _make_functional(
        self, kind: str, of_result: bool, func: Any
    ) -> Callable[[Any, Any, Any, Any], None]:
        names = [argument.name for argument in func._schema.arguments]
        group_index = names.index("group_name")
        peer_index = next((names.index(name) for name in ("dst",) if name in names), None)

        def collective(func: Any, args: Any, kwargs: Any, result: Any) -> None:
            if torch.compiler.is_compiling():
                return
            values = list(args) + [kwargs[name] for name in names[len(args) :] if name in kwargs]
            outputs = _tensors(result)
            if not outputs or outputs[0].device.type != "cuda":
                return
            group = values[group_index]
            group_name = (
                group if isinstance(group, str) else getattr(group, "group_name", str(group))
            )
            peer = int(values[peer_index]) + 1 if peer_index is not None else 0
            size = payload_bytes(result if of_result else values[0])
            end = self.begin(kind, group_name, size, asynchronous=True, peer=peer)
            held: list[torch.Tensor] = _tensors(values[0])

            def finish() -> None:
                end()
                held.clear()

            for live in self._recorder.find(outputs[0]):
                self._pending[live.id] = finish
                self._recorder.on_death[live.id] = self._died

        return collective

    def _wait_tensor(self, func: Any, args: Any, kwargs: Any) -> Any:
        # The operator's fake implementation makes a new tensor; on a GPU it gives its argument back.
        self.waited(args[0])
        return args[0]

    def waited(self, result: torch.Tensor) -> None:
        """The functional collective that made `result` is waited for."""
        if self._pending:
            for live in self._recorder.find(result):
                self._died(live.id)

    def _died(self, live_id: int) -> None:
        finish = self._pending.pop(live_id, None)
        if finish is not None:
            finish()


def _nothing() -> None:
    return
