"""What can be read at a phase boundary without disturbing the run: the allocator's counters, the driver, the process, NCCL.

Nothing here waits for the device, empties a cache or resets a counter. What a version or a machine does not offer is None:
unknown, never 0.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """Bytes at one instant, and how many calls the allocator had served by then."""

    requested: int | None
    allocated: int
    active: int
    reserved: int
    allocs: int
    """Calls of the allocator so far: what places this reading in the history, exactly."""
    frees: int
    frees_completed: int
    driver_free: int | None
    driver_total: int | None
    process_used: int | None
    """Memory of this process as NVML sees it; None when it does not see the process (containers)."""
    device_used: int | None
    """Memory in use on the device as NVML sees it."""
    nccl: dict[str, dict[str, int]] | None
    """NCCL's own statistics by communicator (torch 2.12 and NCCL 2.29.7, and later)."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Readings:
    """Reads one device of this process."""

    def __init__(self, torch: Any, device: int, nvml: Nvml | None) -> None:
        self._torch = torch
        self._device = device
        self._nvml = nvml

    def read(self) -> Reading:
        """The counters now."""
        torch, device = self._torch, self._device
        stats = torch.cuda.memory_stats(device)

        def current(name: str) -> int:
            return int(stats.get(f"{name}.all.current", 0))

        free: int | None = None
        total: int | None = None
        try:
            free, total = (int(value) for value in torch.cuda.mem_get_info(device))
        except RuntimeError:  # The driver can refuse while a graph is captured: not known then.
            free = total = None
        process, used = (None, None) if self._nvml is None else self._nvml.memory(device)
        return Reading(
            requested=current("requested_bytes")
            if "requested_bytes.all.current" in stats
            else None,
            allocated=current("allocated_bytes"),
            active=current("active_bytes"),
            reserved=current("reserved_bytes"),
            allocs=int(stats.get("allocation.all.allocated", 0)),
            frees=int(stats.get("allocation.all.freed", 0)),
            frees_completed=int(stats.get("active.all.freed", 0)),
            driver_free=free,
            driver_total=total,
            process_used=process,
            device_used=used,
            nccl=nccl_memory(torch),
        )


def nccl_memory(torch: Any) -> dict[str, dict[str, int]] | None:
    """`Backend.memory_stats()` of every NCCL process group, by name. None where this torch or NCCL has none."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    groups = getattr(getattr(distributed.distributed_c10d, "_world", None), "pg_map", None)
    if not groups:
        return None
    statistics: dict[str, dict[str, int]] = {}
    for group in list(groups):
        try:
            backend = group._get_backend(torch.device("cuda"))
            if not hasattr(backend, "memory_stats"):
                return None
            found = {str(name): int(value) for name, value in backend.memory_stats().items()}
        except (RuntimeError, AttributeError, ValueError):
            continue  # Without NCCL, or its communicator has not been made yet.
        statistics[str(getattr(group, "group_name", len(statistics)))] = found
    return statistics or None


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t (nvml.h, version 2 and later)."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    ]


class _MemoryInfo(ctypes.Structure):
    """nvmlMemory_t (nvml.h)."""

    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


_NOT_AVAILABLE = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
_INSUFFICIENT_SIZE = 7  # NVML_ERROR_INSUFFICIENT_SIZE


class Nvml:
    """libnvidia-ml by ctypes: the job's environment need not have a Python binding."""

    def __init__(self, torch: Any, library: Any) -> None:
        self._torch = torch
        self._library = library
        self._handles: dict[int, Any] = {}

    @classmethod
    def load(cls, torch: Any) -> Nvml | None:
        """None where there is no NVML."""
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() != 0:
                return None
        except (OSError, AttributeError):
            return None
        return cls(torch, library)

    def driver_version(self) -> str | None:
        text = ctypes.create_string_buffer(80)
        try:
            done = self._library.nvmlSystemGetDriverVersion(text, 80)
        except AttributeError:
            return None
        return text.value.decode("ascii", "replace") if done == 0 else None

    def memory(self, device: int) -> tuple[int | None, int | None]:
        """(bytes of this process, bytes in use) on a device of torch's numbering; None where NVML does not say."""
        try:
            handle = self._handle(device)
            if handle is None:
                return None, None
            return self._process(handle), self._used(handle)
        except AttributeError:  # A symbol that this driver's library does not have.
            return None, None

    def _handle(self, device: int) -> Any:
        if device not in self._handles:
            # CUDA_VISIBLE_DEVICES renumbers torch's devices; the UUID (torch 2.4 and later) does not change.
            uuid = getattr(self._torch.cuda.get_device_properties(device), "uuid", None)
            handle = ctypes.c_void_p()
            if uuid is not None:
                text = str(uuid)
                name = text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
                done = self._library.nvmlDeviceGetHandleByUUID(
                    name.encode("ascii"), ctypes.byref(handle)
                )
            elif not os.environ.get("CUDA_VISIBLE_DEVICES"):
                done = self._library.nvmlDeviceGetHandleByIndex_v2(
                    ctypes.c_uint(device), ctypes.byref(handle)
                )
            else:
                done = 1
            self._handles[device] = handle if done == 0 else None
        return self._handles[device]

    def _process(self, handle: Any) -> int | None:
        room = 64
        for _ in range(3):
            count = ctypes.c_uint(room)
            processes = (_ProcessInfo * room)()
            done = self._library.nvmlDeviceGetComputeRunningProcesses_v3(
                handle, ctypes.byref(count), processes
            )
            if done != _INSUFFICIENT_SIZE:
                break
            room = count.value + 16
        if done != 0:
            return None
        for process in processes[: count.value]:
            if process.pid == os.getpid() and process.usedGpuMemory != _NOT_AVAILABLE:
                return int(process.usedGpuMemory)
        return None

    def _used(self, handle: Any) -> int | None:
        memory = _MemoryInfo()
        done = self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return int(memory.used) if done == 0 else None
