"""CUDA streams and events that record instead of run.

The current stream is kept where PyTorch keeps it: in the (fake) device guard. So the autograd engine switches to the
stream of the forward operator when it runs the backward of it, exactly as on a GPU.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.replacements import Replacements

_CUDA = 1  # c10/core/DeviceType.h

_stream_ids = itertools.count(1)
_event_ids = itertools.count(1)
_sink: EventSink | None = None


def _emit(event: protocol.Event) -> None:
    if _sink is not None:
        _sink.emit(event)


def device_index_of(device: Any) -> int:
    """The index that a device argument means: None is the current device."""
    if isinstance(device, int) and not isinstance(device, bool):
        return device if device >= 0 else current_device()
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.index is not None:
        return device.index
    return current_device()


def current_device() -> int:
    """Index of the current device, as the device guard has it."""
    return int(torch._C._accelerator_getDeviceIndex())


def switch_device(index: int) -> None:
    """Makes a device current. FakeTensorMode remembers results by their arguments, in which `cuda` means the current one."""
    if index != current_device():
        FakeTensorMode.cache_clear()
        torch._C._accelerator_setDeviceIndex(index)


def current_stream_id(device_index: int) -> int:
    """Id of the current stream of a device; 0 is the default stream."""
    return int(torch._C._accelerator_getStream(device_index).stream_id)


class Stream(torch.Stream):
    """Stands for torch.cuda.Stream. A new one gets a new id; ids are not reused (a GPU takes them from a pool of 32)."""

    def __new__(cls, device: Any = None, priority: int = 0, **known: Any) -> Stream:
        if "stream_ptr" in known:
            known = {"stream_id": int(known["stream_ptr"])}
        stream_id = known.get("stream_id")
        index = known.get("device_index")
        made: Stream = super().__new__(
            cls,
            stream_id=next(_stream_ids) if stream_id is None else stream_id,
            device_index=device_index_of(device) if index is None else index,
            device_type=_CUDA,
        )
        return made

    def __init__(self, device: Any = None, priority: int = 0, **known: Any) -> None:
        self.priority = priority

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    @property
    def _as_parameter_(self) -> int:
        return self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -5)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        from memtracker_sidecar.fake_cuda import graphs

        return graphs.is_capturing()

    def synchronize(self) -> None:
        _emit(protocol.stream_synchronize(self.device_index + 1, self.stream_id))

    def record_event(self, event: Any = None) -> Any:
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(Stream.record_event(stream))

    def __enter__(self) -> Stream:
        self._outer = [*getattr(self, "_outer", []), current_stream()]
        set_stream(self)
        return self

    def __exit__(self, *_error: object) -> None:
        set_stream(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, torch.Stream)
            and other.stream_id == self.stream_id
            and other.device_index == self.device_index
        )

    def __hash__(self) -> int:
        return hash((self.device_index, self.stream_id))

    def __repr__(self) -> str:
        return (
            f"<torch.cuda.Stream device=cuda:{self.device_index} cuda_stream={self.stream_id:#x}>"
        )


class ExternalStream(Stream):
    """A stream made by another library, known by its pointer."""

    def __new__(cls, stream_ptr: int, device: Any = None, **known: Any) -> ExternalStream:
        made = Stream.__new__(cls, device, stream_id=int(stream_ptr))
        assert isinstance(made, ExternalStream)
        return made


class Event:
    """Stands for torch.cuda.Event. Recorded and waited for, never timed: `elapsed_time` is one millisecond."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self.event_id = 0
        self.device = torch.device("cuda", current_device())

    @classmethod
    def from_ipc_handle(cls, device: Any, handle: Any) -> Event:
        return cls()

    def ipc_handle(self) -> bytes:
        return b"\0" * 64

    @property
    def cuda_event(self) -> int:
        return self.event_id

    def _id(self) -> int:
        if self.event_id == 0:
            self.event_id = next(_event_ids)
        return self.event_id

    def record(self, stream: Any = None) -> None:
        stream = current_stream() if stream is None else stream
        _emit(protocol.event_record(self._id(), stream.stream_id))

    def wait(self, stream: Any = None) -> None:
        if (
            self.event_id
        ):  # waiting for an event that was never recorded does nothing (cudaStreamWaitEvent)
            stream = current_stream() if stream is None else stream
            _emit(protocol.event_wait(self.event_id, stream.stream_id))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        if self.event_id:
            _emit(protocol.event_synchronize(self.event_id))

    def elapsed_time(self, end: Any) -> float:
        return 1.0


def current_stream(device: Any = None) -> Stream:
    index = device_index_of(device)
    return Stream(stream_id=current_stream_id(index), device_index=index)


def default_stream(device: Any = None) -> Stream:
    return Stream(stream_id=0, device_index=device_index_of(device))


def set_stream(stream: Any) -> None:
    if stream is not None:
        device = current_device()
        torch._C._accelerator_setStream(
            stream
        )  # this also switches the device, torch.cuda.set_stream does not
        if stream.device_index != device:
            torch._C._accelerator_setDeviceIndex(device)


class StreamContext:
    """`with torch.cuda.stream(s)`: s and its device are current inside; None does nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self._device = current_device()
        self._outer = current_stream(self.stream.device_index)
        switch_device(self.stream.device_index)
        torch._C._accelerator_setStream(self.stream)

    def __exit__(self, *_error: object) -> None:
        if self.stream is None:
            return
        torch._C._accelerator_setStream(self._outer)
        switch_device(self._device)


def synchronize(device: Any = None) -> None:
    _emit(protocol.device_synchronize(device_index_of(device) + 1))


def install(replacements: Replacements, sink: EventSink | None) -> None:
    """Replaces streams and events in torch.cuda and torch.accelerator."""
    global _sink
    _sink = sink
    surface = {
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "synchronize": synchronize,
        "get_stream_from_external": lambda pointer, device=None: ExternalStream(pointer, device),
    }
    reason = "CUDA streams need a driver; these are recorded, so that the allocator can be replayed with them"
    replacements.set_all(torch.cuda, surface, reason)
    replacements.set_all(
        torch.cuda.streams,
        {"Stream": Stream, "ExternalStream": ExternalStream, "Event": Event},
        reason,
    )
    replacements.set_existing(
        torch.accelerator,
        {"current_stream": current_stream, "set_stream": set_stream, "synchronize": synchronize},
        reason,
    )
    replacements.set(
        torch._C,
        "_cuda_getCurrentRawStream",
        current_stream_id,
        "Triton and Inductor ask for the raw stream",
    )
