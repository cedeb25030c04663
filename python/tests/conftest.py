"""Events into a list, traced runs in this process, and worker processes read through a real ZeroMQ socket."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
import torch.distributed as dist
import zmq

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "python"))

from memtracker_sidecar import protocol  # noqa: E402
from memtracker_sidecar.protocol import Event  # noqa: E402
from memtracker_sidecar.worker_spec import GpuProperties, WorkerSpec  # noqa: E402

GPU = GpuProperties("NVIDIA H100 80GB HBM3", (9, 0), 85_028_765_696, 132)


class ListSink:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


@dataclass
class Trace:
    """Events with their tables resolved."""

    events: list[Event]
    strings: dict[int, str] = field(init=False)
    modules: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        self.strings = {
            event[1]: event[2] for event in self.events if event[0] == protocol.STRING
        } | {0: ""}
        self.modules = {
            event[1]: self.strings[event[3]] for event in self.events if event[0] == protocol.MODULE
        } | {0: ""}

    def of(self, code: int) -> list[Event]:
        return [event for event in self.events if event[0] == code]

    def allocations(self, device: int | None = None) -> list[dict[str, Any]]:
        """Allocations by name: storage, bytes, device, stream, pool, op, stack, module, step."""
        return [
            {
                "storage": event[1],
                "bytes": event[2],
                "device": event[3],
                "stream": event[4],
                "pool": event[5],
                "op": self.strings[event[6]],
                "stack": event[7],
                "module": self.modules[event[8]],
                "step": event[9],
            }
            for event in self.of(protocol.ALLOC)
            if device is None or event[3] == device
        ]

    def owners(self) -> dict[int, tuple[int, str]]:
        return {event[1]: (event[2], self.strings[event[3]]) for event in self.of(protocol.OWNER)}

    def peak(self, device: int) -> int:
        """Largest number of live bytes, from the ledger events alone."""
        live: dict[int, int] = {}
        now = most = 0
        for event in self.events:
            if event[0] == protocol.ALLOC and event[3] == device:
                live[event[1]] = event[2]
                now += event[2]
            elif event[0] == protocol.FREE and event[1] in live:
                now -= live.pop(event[1])
            elif event[0] == protocol.RESIZE and event[1] in live:
                now += event[2] - live[event[1]]
                live[event[1]] = event[2]
            most = max(most, now)
        return most


def make_spec(**changes: Any) -> WorkerSpec:
    values: dict[str, Any] = {
        "endpoint": "inproc://none",
        "run": "test-run",
        "adapter": REPOSITORY / "adapters" / "script",
        "checkout": None,
        "argv": (),
        "cwd": REPOSITORY,
        "world": 8,
        "rank": 0,
        "gpus_per_node": 8,
        "gpu": GPU,
        "steps": 2,
        "stack_depth": 64,
    }
    return WorkerSpec(**(values | changes))


class TracedRun:
    """A run in this process."""

    def __init__(self, spec: WorkerSpec) -> None:
        from memtracker_sidecar.adapter_api import Plan
        from memtracker_sidecar.run import Run

        self.sink = ListSink()
        self.run = Run(spec, self.sink)
        self.context = self.run.context(Plan(()))
        self.device = spec.local_rank + 1

    def recording(self) -> contextlib.AbstractContextManager[None]:
        return self.context.recording()

    @property
    def trace(self) -> Trace:
        return Trace(list(self.sink.events))


@pytest.fixture
def traced() -> Iterator[Callable[..., TracedRun]]:
    """Starts runs; everything is put back after the test."""
    runs: list[TracedRun] = []

    def start(**changes: Any) -> TracedRun:
        runs.append(TracedRun(make_spec(**changes)))
        return runs[-1]

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()
    for run in reversed(runs):
        run.run.finish()
    assert torch._C._len_torch_dispatch_stack() == 0


@dataclass
class WorkerResult:
    events: list[Event]
    status: int
    frames: int
    stderr: str

    @property
    def trace(self) -> Trace:
        return Trace(self.events)

    @property
    def close(self) -> Event:
        return self.events[-1]


def run_worker(
    folder: Path,
    *,
    python: str = sys.executable,
    environment: dict[str, str] | None = None,
    on_event: Callable[[Event, subprocess.Popen[str]], None] | None = None,
    timeout: float = 300.0,
    **changes: Any,
) -> WorkerResult:
    """Starts a worker as the orchestrator does and reads its stream to the end."""
    endpoint = f"ipc://{folder}/events"
    spec: dict[str, Any] = {
        "endpoint": endpoint,
        "curve": None,
        "run": "test-run",
        "adapter": str(REPOSITORY / "adapters" / "script"),
        "checkout": None,
        "argv": [],
        "cwd": str(folder),
        "world": 1,
        "rank": 0,
        "gpus_per_node": 8,
        "gpu": {
            "name": GPU.name,
            "capability": list(GPU.capability),
            "total_memory": GPU.total_memory,
            "multi_processor_count": GPU.multi_processor_count,
        },
        "steps": 2,
        "stack_depth": 32,
        "options": {},
    } | changes
    file = folder / "spec.json"
    file.write_text(json.dumps(spec))
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(endpoint)
    process = subprocess.Popen(
        [python, "-m", "memtracker_sidecar", str(file)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), **(environment or {})},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    events: list[Event] = []
    frames = 0
    deadline = time.monotonic() + timeout
    try:
        while time.monotonic() < deadline:
            if socket.poll(100):
                sender, frame = socket.recv_multipart()
                version, run, sequence, batch = msgpack.unpackb(frame)
                assert (version, run, sequence) == (protocol.PROTOCOL_VERSION, "test-run", frames)
                frames += 1
                for event in batch:
                    events.append(tuple(event))
                    if on_event is not None:
                        on_event(event, process)
                if events and events[-1][0] == protocol.CLOSE:
                    socket.send_multipart([sender, b""])
                    break
            elif process.poll() is not None:
                break
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        context.destroy(linger=0)
    return WorkerResult(events, process.returncode, frames, stderr)


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., WorkerResult]:
    """Runs worker processes in a private folder."""

    def start(script: str | None = None, **changes: Any) -> WorkerResult:
        if script is not None:
            (tmp_path / "train.py").write_text(script)
            changes.setdefault("argv", ["train.py"])
        return run_worker(tmp_path, **changes)

    return start
