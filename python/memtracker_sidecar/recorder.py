"""Records every storage's birth, resize and death: the live-bytes ledger.

A dispatch mode above FakeTensorMode sees each operator once, below autograd and below tensor subclasses: DTensor,
AsyncCollectiveTensor and other wrappers are declined, so that only the operators on their inner tensors arrive. Of each result
the storage is looked up by address; a new one is a birth, a changed size is a resize, and a weak reference tells its death at
the moment the last reference goes, wherever that happens (Python, the autograd engine, the garbage collector).

Views and aliases share a storage and so count once. `UntypedStorage.resize_` (FSDP frees and refills parameters with it) is
replaced for the run, because it is not an operator. Storages that came to life outside of the dispatcher are found when
something else meets them.

PyTorch's own MemTracker was measured an order of magnitude slower on the same run, and counts DTensor's sharding propagation
(which makes global-size tensors to read shapes off) as memory; `paused` keeps that out here.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from memtracker_sidecar import protocol
from memtracker_sidecar.devices import CPU_DEVICE, Devices
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.fake_cuda import addresses, memory, streams
from memtracker_sidecar.modules import ModuleTracker
from memtracker_sidecar.tables import Tables
from memtracker_sidecar.workspace_rules import GpuLimits, Workspace, WorkspaceRules, make_call

Policy = Callable[[Any, Any, Any], Any]
"""(operator, args, kwargs) -> result, or NotImplemented to run the operator as it is."""

_DEVICE_OF = torch.ops.prim.device.default
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_IGNORED = 0
"""Device of a storage whose memory is counted elsewhere."""
_GRANULE = (
    512  # c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize: what memory_allocated() counts in
)


class LiveStorage(weakref.ref):  # type: ignore[type-arg]
    """A storage that is alive, by weak reference."""

    __slots__ = ("id", "key", "bytes", "device", "owner", "step")

    id: int
    key: int
    bytes: int
    device: int
    owner: int
    step: int


@dataclass(frozen=True)
class FailedOperator:
    """An operator that raised, described while its module still ran. Holds no tensor."""

    error: BaseException
    operator: str
    arguments: tuple[str, ...]
    module: str

    @classmethod
    def describe(
        cls, error: BaseException, func: Any, args: Any, kwargs: Any, module: str
    ) -> FailedOperator:
        arguments = [describe_tensor(argument) for argument in args]
        arguments += [f"{name}={describe_tensor(value)}" for name, value in kwargs.items()]
        return cls(error, str(func), tuple(arguments), module)


def describe_tensor(value: Any) -> str:
    """`bfloat16[8, 4096] cuda:0`, or the start of the repr of anything that is not a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {value.device}"
    if isinstance(value, (list, tuple)):
        return (
            "["
            + ", ".join(describe_tensor(item) for item in value[:4])
            + (", …]" if len(value) > 4 else "]")
        )
    return repr(value)[:60]


def _rounded(size: int) -> int:
    return -(-size // _GRANULE) * _GRANULE


class LiveBytes:
    """Live bytes by device id, and as torch.cuda's memory queries by CUDA device index."""

    def __init__(self) -> None:
        self.requested: dict[int, int] = {}
        self.requested_peak: dict[int, int] = {}
        self._allocated: dict[int, int] = {}
        self._peak: dict[int, int] = {}

    def change(self, device: int, before: int, after: int) -> None:
        """A storage of `before` bytes has `after` bytes now; 0 is not there."""
        now = self.requested.get(device, 0) + after - before
        self.requested[device] = now
        if now > self.requested_peak.get(device, 0):
            self.requested_peak[device] = now
        blocks = self._allocated.get(device, 0) + _rounded(after) - _rounded(before)
        self._allocated[device] = blocks
        if blocks > self._peak.get(device, 0):
            self._peak[device] = blocks

    def allocated(self, index: int) -> int:
        return self._allocated.get(index + 1, 0)

    def peak_allocated(self, index: int) -> int:
        return self._peak.get(index + 1, 0)

    def reset_peak(self, index: int) -> None:
        self._peak[index + 1] = self._allocated.get(index + 1, 0)


class StorageRecorder(TorchDispatchMode):
    """The recorder of one process. Enter it inside (after) the FakeTensorMode of the run."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        # Dynamo refuses to compile under a user's dispatch mode; this one does not change what is computed.
        return True

    def __init__(
        self,
        sink: EventSink,
        tables: Tables,
        devices: Devices,
        modules: ModuleTracker,
        *,
        fake_mode: FakeTensorMode | None,
        rules: WorkspaceRules,
        gpu: GpuLimits,
        live: LiveBytes | None = None,
    ) -> None:
        super().__init__()
        self._sink = sink
        self._emit = sink.emit
        self._tables = tables
        self._devices = devices
        self._modules = modules
        self._rules = rules
        self._gpu = gpu
        self.fake_mode = fake_mode
        self.live_bytes = live or LiveBytes()
        self.policies: dict[Any, Policy] = {
            torch.ops.aten.record_stream.default: self._record_stream
        }
        """What to do instead of an operator that fake tensors cannot run."""
        self.after: dict[Any, Callable[[Any, Any, Any, Any], None]] = {}
        """Called with (operator, args, kwargs, result) once the result is recorded."""
        self.kept_until_next: object = None
        """An object that C++ is about to give to Python: kept alive until the next operator."""
        self.on_death: dict[int, Callable[[int], None]] = {}
        """Called once with the id of a storage when it dies."""
        self._live: dict[int, LiveStorage] = {}
        self._wrapper_types: dict[type, bool] = {
            FakeTensor: False,
            torch.Tensor: False,
            torch.nn.Parameter: False,
        }
        self._names: dict[Any, str] = {}
        self._kept_workspaces: set[tuple[Any, ...]] = set()
        self._paused = 0
        self._kernel: str | None = None
        self._count = 0
        self.operators = 0
        """Operators seen."""
        self.failed_operator: FailedOperator | None = None
        """The operator that raised last."""
        self._resize: Any = None

    # -- the mode

    def __enter__(self) -> StorageRecorder:
        original = self._resize = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            result = original(storage, size)
            addresses.resized(storage)
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign,assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing that comes to life inside is memory of the job."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @contextlib.contextmanager
    def inside_policy(self) -> Iterator[None]:
        """Records operators that a policy runs in place of the one it was asked about."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    @contextlib.contextmanager
    def named(self, operator: str) -> Iterator[None]:
        """What comes to life inside was allocated by `operator`: a kernel of a library, not one of PyTorch's."""
        outer, self._kernel = self._kernel, operator
        try:
            yield
        finally:
            self._kernel = outer

    def ignore(self, tensor: torch.Tensor) -> None:
        """The tensor's storage is memory that is counted elsewhere. Make the tensor inside `paused`."""
        storage = tensor.untyped_storage()
        live = LiveStorage(storage, self._death)
        live.id = live.owner = live.step = 0
        live.key = storage._cdata
        live.bytes = int(storage.nbytes())
        live.device = _IGNORED
        self._live[live.key] = live

    def _is_wrapper(self, kind: type) -> bool:
        known = self._wrapper_types.get(kind)
        if known is None:
            known = self._wrapper_types[kind] = hasattr(kind, "__tensor_flatten__")
        return known

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is _DEVICE_OF
            and type(args[0]) is FakeTensor
            and args[0].fake_mode is self.fake_mode
        ):
            # `tensor.device` of a fake tensor comes as an operator, two of three that arrive here. It makes nothing, and
            # FakeTensorMode would answer the same, at the price of a real operator.
            self.kept_until_next = None
            return args[0].fake_device
        try:
            return self._dispatch(func, types, args, {} if kwargs is None else kwargs)
        except Exception as error:
            known = self.failed_operator
            if known is None or known.error is not error:
                self.failed_operator = FailedOperator.describe(
                    error, func, args, kwargs or {}, self._modules.current_name()
                )
            raise

    def _dispatch(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for kind in types:
            if kind is not FakeTensor and self._is_wrapper(kind):
                return NotImplemented
        foreign = args and type(args[0]) is FakeTensor and args[0].fake_mode is not self.fake_mode
        if foreign and self.fake_mode is not None:
            # A compiler or a graph trainer traces with fake tensors of its own: no memory, and no collective, of the job.
            return func(*args, **kwargs)
        self.operators += 1
        if self.kept_until_next is not None:
            self.kept_until_next = None
        policy = self.policies.get(func)
        if policy is not None:
            result = policy(func, args, kwargs)
            if result is not NotImplemented:
                if not self._paused:
                    self._record_all(result, func)
                return result
        if not types and self.fake_mode is not None:
            result = self._run_on_real_tensors(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if self._paused:
            return func(*args, **kwargs)
        name = self._names.get(func)
        if name is None:
            name = self._name(func)
        rules = self._rules.of(name)
        if rules is not None:
            held = self._apply_rules(rules, func, args, kwargs, None, "before")
            result = func(*args, **kwargs)
            self._record_all(result, func)
            held += self._apply_rules(rules, func, args, kwargs, result, "after")
            for storage, size, device_id in reversed(held):
                self.live_bytes.change(device_id, size, 0)
                self._emit((protocol.FREE, storage))
        else:
            result = func(*args, **kwargs)
            if type(result) is FakeTensor:
                self._record(result, func)
            elif result is not None:
                self._record_all(result, func)
        after = self.after.get(func)
        if after is not None:
            after(func, args, kwargs, result)
        return result

    def _name(self, func: Any) -> str:
        schema = getattr(func, "_schema", None)
        name = self._names[func] = schema.name if schema is not None else str(func)
        return name

    def _run_on_real_tensors(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operator whose tensors are all real CPU ones: index arithmetic of meshes, states of generators.

        Not while a compiler's own fake mode is on: what it lifts has to become a fake tensor of its own.
        """
        real = False
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, torch.Tensor):
                    if item.device.type != "cpu" or isinstance(item, FakeTensor):
                        return NotImplemented
                    real = True
                elif isinstance(item, torch.device) and item.type != "cpu":
                    return NotImplemented
        if not real or torch._C._get_dispatch_mode(_FAKE) not in (None, self.fake_mode):
            return NotImplemented
        with unset_fake_temporarily():
            result = func(*args, **kwargs)
        if not self._paused:
            self._record_all(result, func)
        return result

    # -- storages

    def _record_all(self, result: Any, func: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._record(result, func)
        elif isinstance(result, (list, tuple)):
            for item in result:
                if isinstance(item, torch.Tensor):
                    self._record(item, func)
                elif isinstance(item, (list, tuple, dict)):
                    self._record_all(item, func)
        elif isinstance(result, dict):
            for item in pytree.tree_leaves(result):
                if isinstance(item, torch.Tensor):
                    self._record(item, func)

    def _record(self, tensor: torch.Tensor, func: Any) -> LiveStorage | None:
        if type(tensor) is FakeTensor:
            if tensor.fake_mode is not self.fake_mode:
                return None  # a compiler's own tensors, which hold no memory
            device = tensor.fake_device
        elif self._is_wrapper(type(tensor)):
            found = None
            for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
                found = self._record(getattr(tensor, name), func)
            return found
        else:
            device = tensor.device
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return (
                None  # sparse and opaque tensors; their values and indices are tensors of their own
            )
        live = self._live.get(storage._cdata)
        if live is None:
            return self._birth(storage, tensor, device, func)
        size = storage.nbytes()
        if live.bytes != size:
            self._change(live, int(size), func)
        return live

    def _birth(
        self, storage: Any, tensor: torch.Tensor, device: torch.device, func: Any
    ) -> LiveStorage | None:
        device_id = self._devices.id_of(device)
        if device_id == 0:
            return None
        size = int(storage.nbytes())
        live = LiveStorage(storage, self._death)
        self._count += 1
        live.id = self._count
        live.key = storage._cdata
        live.bytes = size
        live.device = device_id
        live.owner = 0
        self._live[live.key] = live
        self.live_bytes.change(device_id, 0, size)
        module, step = self._modules.position()
        live.step = step
        tables = self._tables
        if device_id == CPU_DEVICE:
            stream = pool = 0
        else:
            stream, pool = streams.current_stream_id(device_id - 1), memory.current_pool()
        self._emit(
            (
                protocol.ALLOC,
                live.id,
                size,
                device_id,
                stream,
                pool,
                tables.string(self._kernel or self._names.get(func) or self._name(func)),
                tables.stack(sys._getframe(1)),
                module,
                step,
                tables.tensor(tensor.dtype, tensor.layout, tuple(tensor.shape)),
            )
        )
        return live

    def _death(self, live: LiveStorage) -> None:
        if self._live.get(live.key) is live:
            del self._live[live.key]
            if live.device == _IGNORED:
                return
            self.live_bytes.change(live.device, live.bytes, 0)
            self._emit((protocol.FREE, live.id))
            if self.on_death:
                told = self.on_death.pop(live.id, None)
                if told is not None:
                    told(live.id)

    def _resized(self, storage: Any) -> None:
        live = self._live.get(storage._cdata)
        if live is not None and live.bytes != storage.nbytes():
            self._change(live, int(storage.nbytes()), "storage.resize_")

    def _change(self, live: LiveStorage, size: int, func: Any) -> None:
        if live.device == _IGNORED:
            live.bytes = size
            return
        self.live_bytes.change(live.device, live.bytes, size)
        live.bytes = size
        module, step = self._modules.position()
        if live.device == CPU_DEVICE:
            stream = pool = 0
        else:
            stream, pool = streams.current_stream_id(live.device - 1), memory.current_pool()
        tables = self._tables
        name = func if isinstance(func, str) else self._names.get(func) or self._name(func)
        self._emit(
            (
                protocol.RESIZE,
                live.id,
                size,
                stream,
                pool,
                tables.string(name),
                tables.stack(sys._getframe(1)),
                module,
                step,
            )
        )

    def _record_stream(self, func: Any, args: Any, kwargs: Any) -> None:
        tensor, stream = args
        for live in self.find(tensor):
            self._emit((protocol.RECORD_STREAM, live.id, stream.stream_id))

    def find(self, tensor: torch.Tensor) -> list[LiveStorage]:
        """The live storages of a tensor (several for a wrapper), registering those that nothing met so far."""
        if self._is_wrapper(type(tensor)):
            found: list[LiveStorage] = []
            for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
                inner = getattr(tensor, name)
                if isinstance(inner, torch.Tensor):
                    found += self.find(inner)
            return found
        live = self._record(tensor, "existing")
        return [] if live is None else [live]

    @property
    def storages(self) -> int:
        """Storages that came to life so far."""
        return self._count

    def live_storages(self) -> list[LiveStorage]:
        """Everything that is alive now."""
        return list(self._live.values())

    # -- memory inside kernels

    def _apply_rules(
        self, rules: Any, func: Any, args: Any, kwargs: Any, out: Any, when: str
    ) -> list[tuple[int, int, int]]:
        """Applies the rules of an operator. Returns (storage, bytes, device) of what it holds."""
        device = _cuda_device(args, kwargs)
        if device is None:
            return []
        call = make_call(func, args, kwargs, out, device, self._gpu)
        device_id = self._devices.id_of(device)
        held = []
        for rule in rules:
            for workspace in rule(call):
                if workspace.when != when or workspace.bytes <= 0:
                    continue
                if workspace.key is not None:
                    if workspace.key in self._kept_workspaces:
                        continue
                    self._kept_workspaces.add(workspace.key)
                storage = self._workspace(workspace, device_id, call.stream)
                if workspace.transient:
                    self.live_bytes.change(device_id, workspace.bytes, 0)
                    self._emit((protocol.FREE, storage))
                elif workspace.key is None:
                    held.append((storage, workspace.bytes, device_id))
        return held

    def _workspace(self, workspace: Workspace, device_id: int, stream: int) -> int:
        self._count += 1
        module, step = self._modules.position()
        tables = self._tables
        self._emit(
            (
                protocol.ALLOC,
                self._count,
                workspace.bytes,
                device_id,
                stream,
                memory.current_pool(),
                tables.string(workspace.name),
                tables.stack(sys._getframe(1)),
                module,
                step,
                tables.tensor("uint8", "workspace", (workspace.bytes,)),
            )
        )
        self._emit(
            protocol.owner(
                self._count,
                protocol.OWNER_WORKSPACE,
                tables.string(f"{workspace.name} ({workspace.evidence})"),
            )
        )
        self.live_bytes.change(device_id, 0, workspace.bytes)
        return self._count


def _cuda_device(args: Any, kwargs: Any) -> torch.device | None:
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor) and item.device.type == "cuda":
                return item.device
    return None
