"""Worker processes from start to exit status, read through a real socket."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from conftest import REPOSITORY, WorkerResult, make_spec

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import BATCH_EVENTS, QUEUE_EVENTS, Emitter, EmitterError
from memtracker_sidecar.worker_spec import CurveKeys, SpecError, load_worker_spec, parse_worker_spec

Worker = Callable[..., WorkerResult]

TRAIN = """
import torch
model = torch.nn.Linear(256, 256).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    for _ in range(2):
        model(torch.randn(16, 256).to("cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    BODY
"""


def test_a_script_is_traced_for_the_asked_steps(worker: Worker) -> None:
    result = worker(TRAIN.replace("BODY", ""), steps=3)
    assert result.status == 0, result.stderr
    assert result.close[1] == "done" and result.close[2] == len(result.events)
    names = [(event[2], event[3]) for event in result.trace.of(protocol.PHASE_BEGIN)]
    assert [labels["step"] for name, labels in names if name == "step"] == [1, 2, 3]
    assert [name for name, _ in names[:7]] == [
        "init",
        "step",
        "forward",
        "backward",
        "forward",
        "backward",
        "optimizer",
    ]
    assert [labels["micro_batch"] for name, labels in names[:7] if name == "backward"] == [0, 1]
    opened = {event[1] for event in result.trace.of(protocol.PHASE_BEGIN)}
    assert opened == {event[1] for event in result.trace.of(protocol.PHASE_END)}
    assert result.trace.of(protocol.PROGRESS)[-1][2:] == (3, 3)
    assert {event[1] for event in result.trace.of(protocol.RUN)} >= {"versions", "plan", "replaced"}


def test_tables_come_before_what_refers_to_them(worker: Worker) -> None:
    strings, stacks, tensors, modules, devices = {0}, {0}, {0}, {0}, set()
    for event in worker(TRAIN.replace("BODY", ""), steps=1).events:
        match event[0]:
            case protocol.STRING:
                strings.add(event[1])
            case protocol.STACK:
                assert event[2] in stacks and {event[3], event[4]} <= strings
                stacks.add(event[1])
            case protocol.TENSOR:
                assert {event[2], event[3]} <= strings
                tensors.add(event[1])
            case protocol.MODULE:
                assert event[2] in modules and {event[3], event[4]} <= strings
                modules.add(event[1])
            case protocol.DEVICE:
                devices.add(event[1])
            case protocol.ALLOC:
                assert event[3] in devices and event[6] in strings and event[7] in stacks
                assert event[8] in modules and event[10] in tensors


def test_an_exception_is_told_with_operator_shapes_module_and_place(worker: Worker) -> None:
    script = TRAIN.replace("BODY", "model(torch.randn(16, 250).to('cuda'))")
    result = worker(script)
    assert result.status == 4 and result.close[1] == "failed"
    ((_, kind, cause, traceback, detail, fatal),) = result.trace.of(protocol.ERROR)
    assert kind == "RuntimeError" and fatal
    assert detail["operator"] == "aten.addmm.default"
    assert "float32[16, 250] cuda:0" in cause and "train.py:" in detail["place"]
    assert detail["module"] == "Linear"
    assert "train.py" in traceback
    assert result.trace.allocations(1), "the trace up to the failure is kept"


def test_values_that_are_not_there_are_assumed_and_reported(worker: Worker) -> None:
    script = TRAIN.replace("BODY", "value = model.weight.sum().item(); assert value == 1.0")
    result = worker(script, steps=1)
    assert result.status == 0
    (report,) = (event for event in result.trace.of(protocol.UNCOVERED) if event[2] == "item")
    assert (
        report[1] == "data_dependent"
        and report[4] == "the value is 1.0"
        and "train.py:" in report[3]
    )


def test_an_exit_of_the_script_is_not_a_failure(worker: Worker) -> None:
    assert worker("import sys; sys.exit(0)").close[1] == "done"
    assert worker("import sys; sys.exit(2)").close[1] == "failed"


def test_a_missing_script_is_the_users_problem(worker: Worker) -> None:
    result = worker(argv=["nowhere.py"])
    assert result.status == 3 and result.close[1] == "failed"
    (error,) = result.trace.of(protocol.ERROR)
    assert "nowhere.py" in error[2]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "manifest.json"),
        ({"manifest.json": "{}"}, "has no adapter.py"),
        ({"manifest.json": "{}", "adapter.py": "class Adapter: pass"}, "no class Adapter"),
    ],
)
def test_a_broken_adapter_is_named(
    worker: Worker, tmp_path: Path, files: dict[str, str], says: str
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    result = worker(adapter=str(folder))
    assert result.status == 3
    assert says in result.trace.of(protocol.ERROR)[0][2]


def test_an_interface_that_changed_is_named(worker: Worker, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"name": "probe"}')
    (folder / "adapter.py").write_text(
        "from memtracker_sidecar.adapter_api import *\n"
        "class Adapter(Adapter):\n"
        "    def detect(self, checkout): return Detection(True, '')\n"
        "    def plan(self, spec): return Plan(())\n"
        "    def install(self, context): context.require('json', 'JSONDecoder.decode_all', why='the probe')\n"
        "    def run(self, context): pass\n"
    )
    result = worker(adapter=str(folder))
    assert result.status == 3
    error = result.trace.of(protocol.ERROR)[0]
    assert error[1] == "InterfaceChanged"
    assert (
        error[2]
        == "json of this checkout has no `JSONDecoder.decode_all`; it is needed for the probe"
    )


def test_sigterm_closes_the_stream(worker: Worker) -> None:
    def stop(event: Any, process: subprocess.Popen[str]) -> None:
        if event[0] == protocol.PHASE_BEGIN and event[2] == "step" and event[3]["step"] == 2:
            process.send_signal(signal.SIGTERM)

    result = worker(
        TRAIN.replace("BODY", "").replace("range(100)", "range(10**6)"), steps=10**6, on_event=stop
    )
    assert result.close[1] == "interrupted" and result.close[2] == len(result.events)
    assert result.status == 4


def test_another_torch_is_refused_by_name(worker: Worker, tmp_path: Path) -> None:
    fake = tmp_path / "site" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text('__version__ = "2.9.0+cpu"')
    result = worker(
        TRAIN, environment={"PYTHONPATH": f"{tmp_path / 'site'}:{REPOSITORY / 'python'}"}
    )
    assert result.status == 3
    cause = result.trace.of(protocol.ERROR)[0][2]
    assert "2.9.0+cpu" in cause and "memtracker setup" in cause


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rank": 8}, "rank 8 is not in a world of 8"),
        ({"world": 0}, "`world`"),
        ({"steps": "2"}, "`steps`"),
        ({"argv": [1]}, "`argv`"),
        (
            {
                "gpu": {
                    "name": "x",
                    "capability": [9],
                    "total_memory": 1,
                    "multi_processor_count": 1,
                }
            },
            "capability",
        ),
        ({"endpoint": None}, "`endpoint`"),
    ],
)
def test_a_bad_specification_names_the_field(change: dict[str, Any], says: str) -> None:
    good = make_spec()
    source: dict[str, Any] = {
        "endpoint": good.endpoint,
        "curve": None,
        "run": good.run,
        "adapter": str(good.adapter),
        "checkout": None,
        "argv": [],
        "cwd": ".",
        "world": 8,
        "rank": 0,
        "gpus_per_node": 8,
        "gpu": {"name": "x", "capability": [9, 0], "total_memory": 1, "multi_processor_count": 1},
        "steps": 2,
        "stack_depth": 32,
        "options": {},
    }
    assert parse_worker_spec(source).world == 8
    with pytest.raises(SpecError, match=says):
        parse_worker_spec(source | change)


def test_an_unreadable_specification_is_an_exit_status(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read"):
        load_worker_spec(tmp_path / "none.json")
    done = subprocess.run(
        [sys.executable, "-m", "memtracker_sidecar", str(tmp_path / "none.json")],
        cwd=REPOSITORY / "python",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3 and "cannot read" in done.stderr


# -- the emitter


def receive(socket: zmq.Socket[bytes]) -> list[list[Any]]:
    """All events until the close event; checks the envelope of each frame."""
    events: list[list[Any]] = []
    sequence = 0
    while not events or events[-1][0] != protocol.CLOSE:
        assert socket.poll(10_000), "the stream ended without a close event"
        sender, frame = socket.recv_multipart()
        version, run, number, batch = msgpack.unpackb(frame)
        assert (version, run, number) == (protocol.PROTOCOL_VERSION, "nonce", sequence)
        sequence += 1
        events += batch
    socket.send_multipart([sender, b""])
    return events


def test_a_slow_reader_blocks_the_sender_and_loses_nothing(tmp_path: Path) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.RCVHWM, 1)
    socket.bind(f"ipc://{tmp_path}/s")
    emitter = Emitter(f"ipc://{tmp_path}/s", "nonce")
    total = 8 * QUEUE_EVENTS
    sent = 0

    def produce() -> None:
        nonlocal sent
        for number in range(1, total + 1):
            emitter.emit((protocol.FREE, number))
            sent = number
        emitter.close("done", {})

    thread = threading.Thread(target=produce)
    thread.start()
    time.sleep(1.0)
    assert sent < total, "nothing was read, so the producer has to wait"
    events = receive(socket)
    thread.join(10)
    assert [event[1] for event in events[:-1]] == list(range(1, total + 1))
    assert events[-1] == [protocol.CLOSE, "done", total + 1, {}]
    context.destroy(linger=0)


def test_a_reader_that_pauses_at_the_end_still_gets_the_last_frames(tmp_path: Path) -> None:
    # Few enough batches that all of them lie in the kernel's socket buffer, where a connection that ends loses them.
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.RCVHWM, 1)
    socket.bind(f"ipc://{tmp_path}/s")
    emitter = Emitter(f"ipc://{tmp_path}/s", "nonce")
    for number in range(4 * BATCH_EVENTS):
        emitter.emit((protocol.FREE, number))
    closing = threading.Thread(target=emitter.close, args=("done", {}))
    closing.start()
    time.sleep(1.0)
    assert closing.is_alive(), "nothing was read, so nothing was acknowledged"
    assert len(receive(socket)) == 4 * BATCH_EVENTS + 1
    closing.join(10)
    assert not closing.is_alive()
    context.destroy(linger=0)


def test_a_reader_that_goes_away_before_the_end_is_an_error(tmp_path: Path) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"ipc://{tmp_path}/s")
    emitter = Emitter(f"ipc://{tmp_path}/s", "nonce", timeout_seconds=1.0)
    emitter.emit((protocol.FREE, 1))
    emitter.flush()
    assert socket.poll(10_000)
    context.destroy(linger=0)
    with pytest.raises(EmitterError):
        emitter.close("done", {})


def test_a_reader_that_never_comes_is_an_error(tmp_path: Path) -> None:
    emitter = Emitter(f"ipc://{tmp_path}/none", "nonce", timeout_seconds=0.1)
    with pytest.raises(EmitterError, match="does not read"):
        for number in range(100 * QUEUE_EVENTS):
            emitter.emit((protocol.FREE, number))
    with pytest.raises(EmitterError):
        emitter.close("done", {})


def test_curve_keys_protect_loopback_tcp() -> None:
    server_public, server_secret = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.curve_server = True
    socket.curve_secretkey = server_secret
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    keys = CurveKeys(server_public.decode(), public.decode(), secret.decode())
    emitter = Emitter(f"tcp://127.0.0.1:{port}", "nonce", curve=keys)
    emitter.emit(protocol.log("info", "hello"))
    closing = threading.Thread(target=emitter.close, args=("done", {"storages": 1}))
    closing.start()
    assert receive(socket) == [
        [protocol.LOG, "info", "hello"],
        [protocol.CLOSE, "done", 2, {"storages": 1}],
    ]
    closing.join(10)
    context.destroy(linger=0)


def test_what_was_flushed_is_counted(tmp_path: Path) -> None:
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.bind(f"ipc://{tmp_path}/s")
    emitter = Emitter(f"ipc://{tmp_path}/s", "nonce")
    frames = 0
    for number in range(1, 1001):
        emitter.emit(protocol.log("info", "one more"))
        emitter.flush()
        assert emitter.events == number
        while socket.poll(0):
            sender, _ = socket.recv_multipart()
            frames += 1
    closing = threading.Thread(target=emitter.close, args=("done", {}))
    closing.start()
    while frames < 1001:
        assert socket.poll(10_000)
        sender, _ = socket.recv_multipart()
        frames += 1
    socket.send_multipart([sender, b""])
    closing.join(10)
    context.destroy(linger=0)
