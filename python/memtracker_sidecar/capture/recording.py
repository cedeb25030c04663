"""The recording of one rank: phases as marks with readings, the inventory, torch's history, and the file that comes out.

The file is for `memtracker report`, `compare` and `calibrate`:

    MTCAPTURE 1\\n
    <bytes of the JSON, decimal>\\n
    JSON, see src/measured/capture/capture_schema.ts
    pickle of torch.cuda.memory._snapshot(), protocol 4

It is written to a temporary name and moved into place, so that a file is whole or not there.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import sys
import threading
import time
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.capture.inventory import Inventory
from memtracker_sidecar.capture.readings import Nvml, Readings
from memtracker_sidecar.capture.settings import (
    CaptureSettings,
    Place,
    memory_environment,
)
from memtracker_sidecar.protocol import Event

PICKLE_PROTOCOL = 4
"""What every reader of snapshots takes; torch's memory_viz shows an empty page for 5 (pytorch#183842)."""


class Recording:
    """Recording of one process. Marks may come from any thread."""

    def __init__(self, torch: Any, settings: CaptureSettings, place: Place) -> None:
        self._torch = torch
        self._settings = settings
        self._place = place
        self._lock = threading.RLock()
        self._marks: list[dict[str, Any]] = []
        self._pid = os.getpid()
        self._device = 0
        self._readings: Readings | None = None
        self._nvml: Nvml | None = None
        self._ended: dict[str, Any] | None = None
        self.inventory = Inventory()
        self.facts: dict[str, Any] = {}
        """What the adapter says of the run."""
        self.path = os.path.join(settings.out, f"rank{place.rank:05d}.mtcapture")

    # -- torch's history

    def start(self) -> None:
        """Begins torch's history. Called when CUDA is initialized, before the first allocation."""
        options: dict[str, Any] = {"context": "all", "stacks": self._settings.stacks}
        if self._settings.max_entries > 0:
            options["max_entries"] = self._settings.max_entries
        self._torch.cuda.memory._record_memory_history("all", **options)
        self._nvml = Nvml.load(self._torch)
        # An OOM can end in an abort (NCCL's watchdog): what is known is saved at once.
        attach = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is not None:
            attach(self._out_of_memory)

    @property
    def started(self) -> bool:
        """Whether anything was marked."""
        return self._readings is not None

    def _read(self) -> dict[str, Any]:
        cuda = self._torch.cuda
        if self._readings is None:
            # The job has chosen its device by the time the first phase is marked.
            self._device = cuda.current_device()
            self._readings = Readings(self._torch, self._device, self._nvml)
        return self._readings.read().as_json()

    # -- marks

    def emit(self, event: Event) -> None:
        """Takes the events of the sidecar's Phases: a phase begins or ends. Others say nothing about a real run."""
        with self._lock:
            if event[0] == protocol.PHASE_BEGIN:
                self._mark("begin", phase=event[1], name=event[2], labels=dict(event[3]))
            elif event[0] == protocol.PHASE_END:
                self._mark("end", phase=event[1])

    def _mark(self, kind: str, **fields: Any) -> None:
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            # Before the first use of the device there is nothing to read; the phase stands at the history's start.
            self._marks.append(
                {
                    "kind": kind,
                    "time": time.time_ns() // 1000,
                    "reading": None,
                    **fields,
                }
            )
            return
        if self._settings.synchronize:
            cuda.synchronize()
        reading = self._read()
        mark = {
            "kind": kind,
            "time": time.time_ns() // 1000,
            "reading": reading,
            **fields,
        }
        if kind == "end":
            mark["owners"] = self.inventory.changes()
            # Closed by an exception on its way out: what the phase would have needed is not known.
            failure = sys.exc_info()[0]
            mark["exception"] = None if failure is None else failure.__name__
        self._marks.append(mark)
        # After the reading: what it shows is the run as it is.
        if self._settings.empty_cache:
            cuda.empty_cache()
        if self._settings.reset_peak:
            cuda.reset_peak_memory_stats()

    # -- ending

    def _out_of_memory(
        self, device: int, alloc: int, device_allocated: int, device_free: int
    ) -> None:
        del device, device_allocated
        with self._lock:
            self._ended = {
                "how": "out_of_memory",
                "error": f"{alloc} bytes asked for with {device_free} free",
            }
            self._write()

    def finish(self, how: str, error: str = "") -> None:
        """Writes the file. `how`: done, exception, out_of_memory, terminated."""
        with self._lock:
            if os.getpid() != self._pid:
                return  # A forked child has the parent's handlers and none of its memory.
            known = self._ended
            # An OOM that was caught does not end a run; one that comes out of it does.
            if known is not None and how in ("exception", "terminated"):
                self._ended = {"how": "out_of_memory", "error": error or known["error"]}
            else:
                self._ended = {"how": how, "error": error}
            self._write()

    def _write(self) -> None:
        torch = self._torch
        if not torch.cuda.is_initialized():
            return
        reading = self._read()
        snapshot = torch.cuda.memory._snapshot()
        header = self._header(reading)
        text = json.dumps(header, separators=(",", ":"), default=str).encode("utf-8")
        os.makedirs(self._settings.out, exist_ok=True)
        unfinished = f"{self.path}.{os.getpid()}.part"
        with open(unfinished, "wb") as file:
            file.write(b"MTCAPTURE 1\n%d\n" % len(text))
            file.write(text)
            pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)
        os.replace(unfinished, self.path)

    def _header(self, last: dict[str, Any]) -> dict[str, Any]:
        torch, settings, place = self._torch, self._settings, self._place
        properties = torch.cuda.get_device_properties(self._device)
        return {
            "memtracker": settings.memtracker,
            "framework": settings.framework,
            "purpose": settings.purpose,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rank": place.rank,
            "world": place.world,
            "local_rank": place.local_rank,
            "gpus_per_node": place.gpus_per_node,
            "argv": list(sys.argv),
            "cwd": os.getcwd(),
            "device": self._device,
            "gpu": {
                "name": properties.name,
                "capability": [properties.major, properties.minor],
                "total_memory": properties.total_memory,
                "multi_processor_count": properties.multi_processor_count,
            },
            "versions": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "cuda": _text(getattr(torch.version, "cuda", None)),
                "nccl": _nccl_version(torch),
                "driver": None if self._nvml is None else self._nvml.driver_version(),
            },
            "environment": memory_environment(),
            "history": {
                "max_entries": settings.max_entries or None,
                "stacks": settings.stacks,
            },
            "disturbed_by": [
                name
                for name in ("synchronize", "empty_cache", "reset_peak")
                if getattr(settings, name)
            ],
            "marks": self._marks,
            "end": last,
            "ended": self._ended or {"how": "done", "error": ""},
            "facts": self.facts,
            "communicators": _communicators(torch),
        }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _nccl_version(torch: Any) -> str | None:
    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):
        return None
    return ".".join(str(part) for part in version) if isinstance(version, tuple) else str(version)


def _communicators(torch: Any) -> list[dict[str, Any]]:
    """The process groups: name and ranks, for the topology that a calibration is bound to."""
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    groups = getattr(getattr(distributed.distributed_c10d, "_world", None), "pg_group_ranks", {})
    return [
        {
            "name": str(getattr(group, "group_name", "")),
            "ranks": sorted(int(rank) for rank in ranks),
        }
        for group, ranks in list(groups.items())
    ]


def error_text(value: BaseException) -> str:
    """One line for the file."""
    return f"{type(value).__name__}: {value}"[:2000]
