"""The capture without a GPU: against recorded answers of torch.cuda, and in processes of their own for the import hooks.

The same runner over PyTorch's real allocator, on a fake driver, is tests/measured/capture.test.ts.
"""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memtracker_sidecar import protocol
from memtracker_sidecar.capture.inventory import SHARED, Inventory
from memtracker_sidecar.capture.readings import Readings, nccl_memory
from memtracker_sidecar.capture.recording import Recording
from memtracker_sidecar.capture.settings import (
    CaptureSettings,
    Place,
    SettingsError,
    memory_environment,
    parse_settings,
    place_of,
)
from memtracker_sidecar.phases import Phases

PACKAGE = Path(__file__).resolve().parents[1]
SITE = PACKAGE / "memtracker_sidecar" / "capture" / "site"

STATS = {
    "requested_bytes.all.current": 900,
    "allocated_bytes.all.current": 1024,
    "active_bytes.all.current": 1536,
    "reserved_bytes.all.current": 2097152,
    "allocation.all.allocated": 3,
    "allocation.all.freed": 1,
    "active.all.freed": 0,
}


class RecordedCuda:
    """torch.cuda as a run of torch 2.14 answered, with every call that is made."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.initialized = True
        self.observer: Any = None
        self.memory = SimpleNamespace(
            _record_memory_history=self._history, _snapshot=self._snapshot
        )
        self.nccl = SimpleNamespace(version=lambda: (2, 30, 7))

    def _history(self, enabled: str, **options: Any) -> None:
        self.calls.append(f"history {enabled} {sorted(options.items())}")

    def _snapshot(self) -> dict[str, Any]:
        self.calls.append("snapshot")
        return {"segments": [], "device_traces": [[]]}

    def is_initialized(self) -> bool:
        return self.initialized

    def current_device(self) -> int:
        return 0

    def memory_stats(self, _device: int) -> dict[str, int]:
        return dict(STATS)

    def mem_get_info(self, _device: int) -> tuple[int, int]:
        return 70_000, 100_000

    def get_device_properties(self, _device: int) -> Any:
        return SimpleNamespace(
            name="NVIDIA H200", major=9, minor=0, total_memory=100_000, multi_processor_count=132
        )

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def reset_peak_memory_stats(self) -> None:
        self.calls.append("reset_peak")


def recorded_torch() -> Any:
    cuda = RecordedCuda()

    def attach(observer: Any) -> None:
        cuda.observer = observer

    return SimpleNamespace(
        cuda=cuda,
        _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=attach),
        __version__="2.14.1",
        version=SimpleNamespace(cuda="13.0"),
    )


def settings(folder: Path, **changes: Any) -> CaptureSettings:
    values: dict[str, Any] = {
        "out": str(folder),
        "framework": "script",
        "adapter": "",
        "memtracker": "0.1.0",
        "max_entries": 0,
        "stacks": "python",
        "synchronize": False,
        "empty_cache": False,
        "reset_peak": False,
        "purpose": "validation",
    }
    return CaptureSettings(**{**values, **changes})


def recording(folder: Path, **changes: Any) -> tuple[Recording, RecordedCuda]:
    torch = recorded_torch()
    made = Recording(torch, settings(folder, **changes), Place(3, 8, 3, 8))
    made.start()
    return made, torch.cuda


def read(path: Path) -> tuple[dict[str, Any], Any]:
    with open(path, "rb") as file:
        assert file.readline() == b"MTCAPTURE 1\n"
        header = json.loads(file.read(int(file.readline())))
        return header, pickle.Unpickler(io.BytesIO(file.read())).load()


def test_by_default_the_run_is_not_disturbed(tmp_path: Path) -> None:
    made, cuda = recording(tmp_path)
    phases = Phases(made)
    with phases.phase("step", step=1), phases.phase("optimizer"):
        pass
    made.finish("done")
    assert cuda.calls == ["history all [('context', 'all'), ('stacks', 'python')]", "snapshot"]


def test_each_disturbance_is_a_flag_and_is_told(tmp_path: Path) -> None:
    made, cuda = recording(
        tmp_path, synchronize=True, empty_cache=True, reset_peak=True, max_entries=1000
    )
    with Phases(made).phase("step", step=1):
        pass
    made.finish("done")
    assert (
        cuda.calls[0]
        == "history all [('context', 'all'), ('max_entries', 1000), ('stacks', 'python')]"
    )
    assert cuda.calls[1:4] == ["synchronize", "empty_cache", "reset_peak"]
    header, _ = read(tmp_path / "rank00003.mtcapture")
    assert header["disturbed_by"] == ["synchronize", "empty_cache", "reset_peak"]


def test_the_file_holds_place_versions_marks_and_the_snapshot(tmp_path: Path) -> None:
    made, _ = recording(tmp_path)
    phases = Phases(made)
    with phases.phase("step", step=1):
        pass
    made.finish("done")
    header, snapshot = read(tmp_path / "rank00003.mtcapture")
    assert (header["rank"], header["world"], header["gpus_per_node"]) == (3, 8, 8)
    assert header["versions"]["torch"] == "2.14.1"
    assert header["versions"]["nccl"] == "2.30.7"
    begin, end = header["marks"]
    assert (begin["kind"], begin["name"], begin["labels"]) == ("begin", "step", {"step": 1})
    assert end["exception"] is None
    assert end["reading"]["allocs"] == 3
    assert end["reading"]["driver_free"] == 70_000
    assert end["reading"]["nccl"] is None
    assert header["ended"] == {"how": "done", "error": ""}
    assert snapshot == {"segments": [], "device_traces": [[]]}


def test_a_phase_before_the_first_use_of_cuda_has_no_reading(tmp_path: Path) -> None:
    made, cuda = recording(tmp_path)
    cuda.initialized = False
    phases = Phases(made)
    opened = phases.begin("init")
    cuda.initialized = True
    phases.end(opened)
    made.finish("done")
    header, _ = read(tmp_path / "rank00003.mtcapture")
    assert [mark["reading"] is None for mark in header["marks"]] == [True, False]


def test_a_phase_that_an_exception_ends_says_so(tmp_path: Path) -> None:
    made, _ = recording(tmp_path)
    phases = Phases(made)
    with pytest.raises(ValueError, match="boom"), phases.phase("step", step=1):
        raise ValueError("boom")
    made.finish("exception", "ValueError: boom")
    header, _ = read(tmp_path / "rank00003.mtcapture")
    assert header["marks"][-1]["exception"] == "ValueError"
    assert header["ended"] == {"how": "exception", "error": "ValueError: boom"}


def test_an_oom_is_saved_at_once_and_kept_when_the_process_dies_of_it(tmp_path: Path) -> None:
    made, cuda = recording(tmp_path)
    cuda.observer(0, 4096, 2097152, 70_000)
    header, _ = read(tmp_path / "rank00003.mtcapture")
    assert header["ended"] == {
        "how": "out_of_memory",
        "error": "4096 bytes asked for with 70000 free",
    }
    made.finish("terminated", "signal 15")
    header, _ = read(tmp_path / "rank00003.mtcapture")
    assert header["ended"] == {"how": "out_of_memory", "error": "signal 15"}


def test_an_oom_that_was_caught_does_not_end_a_run(tmp_path: Path) -> None:
    made, cuda = recording(tmp_path)
    cuda.observer(0, 4096, 2097152, 70_000)
    made.finish("done")
    header, _ = read(tmp_path / "rank00003.mtcapture")
    assert header["ended"]["how"] == "done"


def test_other_events_of_the_sidecar_are_no_marks(tmp_path: Path) -> None:
    made, _ = recording(tmp_path)
    made.emit(protocol.log("info", "hello"))
    made.finish("done")
    header, _ = read(tmp_path / "rank00003.mtcapture")
    assert header["marks"] == []


def test_what_is_not_offered_is_unknown_and_not_zero() -> None:
    torch = recorded_torch()
    stats = {name: value for name, value in STATS.items() if not name.startswith("requested")}
    torch.cuda.memory_stats = lambda _device: stats

    def refuse(_device: int) -> tuple[int, int]:
        raise RuntimeError("operation not permitted when stream is capturing")

    torch.cuda.mem_get_info = refuse
    reading = Readings(torch, 0, None).read()
    assert reading.requested is None
    assert reading.driver_free is None
    assert reading.process_used is None
    assert reading.nccl is None


def test_nccl_statistics_are_read_from_each_group_that_has_them() -> None:
    class Group:
        def __init__(self, name: str, backend: Any) -> None:
            self.group_name = name
            self._backend = backend

        def _get_backend(self, _device: Any) -> Any:
            if self._backend is None:
                raise RuntimeError("no backend for cuda")
            return self._backend

    nccl = SimpleNamespace(memory_stats=lambda: {"total": 960, "persist": 480})
    groups = {Group("0", nccl): None, Group("1", None): None}
    world = SimpleNamespace(pg_map=groups)
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        distributed_c10d=SimpleNamespace(_world=world),
    )
    torch = SimpleNamespace(distributed=distributed, device=str)
    assert nccl_memory(torch) == {"0": {"total": 960, "persist": 480}}
    old = SimpleNamespace(pg_map={Group("0", SimpleNamespace()): None})
    distributed.distributed_c10d = SimpleNamespace(_world=old)
    assert nccl_memory(torch) is None


class Tensor:
    """What the inventory asks of a tensor."""

    def __init__(self, address: int, is_cuda: bool = True) -> None:
        self.is_cuda = is_cuda
        self._address = address
        self.grad: Any = None

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=lambda: self._address)


class Model:
    def __init__(self, parameters: dict[str, Any], buffers: dict[str, Any]) -> None:
        self._parameters = parameters
        self._buffers = buffers

    def named_parameters(self) -> Any:
        return self._parameters.items()

    def named_buffers(self) -> Any:
        return self._buffers.items()


def test_the_inventory_counts_a_storage_once_and_tells_what_is_new() -> None:
    weight, tied, bias = Tensor(512), Tensor(512), Tensor(1024)
    model = Model(
        {"weight": weight, "tied": tied, "bias": bias},
        {"steps": Tensor(0), "on_host": Tensor(4096, False)},
    )
    inventory = Inventory()
    inventory.add_model(model)
    inventory.add_model(model)
    assert inventory.changes() == [(512, "parameter", "weight"), (1024, "parameter", "bias")]
    assert inventory.changes() == []
    bias.grad = Tensor(2048)
    assert inventory.changes() == [(2048, "gradient", "bias")]


def test_a_storage_of_two_categories_is_shared_and_a_dtensor_is_its_local_part() -> None:
    parameter = Tensor(512)
    local = SimpleNamespace(_local_tensor=Tensor(8192))
    model = Model({"weight": parameter, "sharded": local}, {"alias": Tensor(512)})
    optimizer = SimpleNamespace(state={parameter: {"exp_avg": Tensor(1536), "step": 3}})
    optimizer = type("Optimizer", (), vars(optimizer))()
    inventory = Inventory()
    inventory.add_model(model)
    inventory.add_optimizer(optimizer)
    assert inventory.owners() == {
        512: (SHARED, "weight and alias"),
        8192: ("parameter", "sharded"),
        1536: ("optimizer_state", "weight.exp_avg"),
    }


def test_the_inventory_keeps_nothing_alive() -> None:
    model = Model({"weight": Tensor(512)}, {})
    inventory = Inventory()
    inventory.add_model(model)
    del model
    assert inventory.owners() == {}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place(0, 1, 0, 1)),
        (
            {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"},
            Place(9, 16, 1, 8),
        ),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_NTASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_NTASKS_PER_NODE": "4",
            },
            Place(5, 8, 1, 4),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "2",
                "OMPI_COMM_WORLD_SIZE": "4",
                "SLURM_NTASKS_PER_NODE": "4(x2)",
            },
            Place(2, 4, 0, 4),
        ),
    ],
)
def test_torchrun_srun_and_mpirun_say_where_a_process_is(
    environment: dict[str, str], place: Place
) -> None:
    assert place_of(environment) == place


def test_only_variables_that_change_memory_are_kept() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "PYTORCH_CUDA_ALLOC_CONF": "x",
        "AWS_SECRET": "s",
        "HF_TOKEN": "t",
    }
    assert memory_environment(environment) == {"NCCL_DEBUG": "INFO", "PYTORCH_CUDA_ALLOC_CONF": "x"}


def test_settings_that_do_not_read_are_an_error() -> None:
    with pytest.raises(SettingsError):
        parse_settings("{}")


def run_python(
    source: str, folder: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A process of its own, with the capture's sitecustomize in front."""
    script = folder / "job.py"
    script.write_text(source, encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{SITE}:{folder}", **variables}
    command = [sys.executable, *(arguments or (str(script),))]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, check=False
    )


def test_a_process_without_settings_is_left_alone(tmp_path: Path) -> None:
    source = "import sys; print('memtracker_sidecar' in sys.modules, len(sys.meta_path))"
    plain = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert run_python(source, tmp_path).stdout == plain.stdout


def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins; builtins.own = 'ran'", encoding="utf-8"
    )
    assert run_python("import builtins; print(builtins.own)", tmp_path).stdout == "ran\n"


def test_bad_settings_do_not_keep_the_job_from_starting(tmp_path: Path) -> None:
    done = run_python(
        "print('ran')", tmp_path, MEMTRACKER_CAPTURE="{}", MEMTRACKER_CAPTURE_PACKAGE=str(PACKAGE)
    )
    assert done.stdout == "ran\n"
    assert done.stderr.startswith("memtracker: this process is not captured: SettingsError")


HOOKS = f"""
import sys
sys.path.insert(0, {str(PACKAGE)!r})
from memtracker_sidecar.capture.import_hooks import ImportHooks
hooks = ImportHooks()
hooks.install()
"""


def test_a_module_is_told_once_it_has_been_executed_and_looks_untouched(tmp_path: Path) -> None:
    (tmp_path / "framework").mkdir()
    (tmp_path / "framework" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "framework" / "trainer.py").write_text("class Trainer: pass", encoding="utf-8")
    source = (
        HOOKS
        + """
hooks.on_module("framework.trainer", lambda module: print("told", module.Trainer.__name__))
hooks.on_module("framework.absent", lambda module: print("never"))
import framework.trainer
import framework.trainer as again
print(type(again.__loader__).__name__, type(again.__spec__.loader).__name__)
hooks.on_module("framework.trainer", lambda module: print("told at once"))
"""
    )
    assert (
        run_python(source, tmp_path).stdout
        == "told Trainer\nSourceFileLoader SourceFileLoader\ntold at once\n"
    )


def test_a_class_that_the_main_module_makes_is_caught(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text(
        HOOKS
        + 'hooks.on_main_class("pack.train", "Trainer", lambda made: print("made", made.__name__))',
        encoding="utf-8",
    )
    (tmp_path / "pack" / "train.py").write_text(
        "import pack\nclass Trainer: pass\nclass Other: pass\nprint('end')", encoding="utf-8"
    )
    by_module = run_python("", tmp_path, "-m", "pack.train")
    assert (by_module.stdout, by_module.stderr) == ("made Trainer\nend\n", "")
    by_file = run_python("", tmp_path, str(tmp_path / "pack" / "train.py"))
    assert (by_file.stdout, by_file.stderr) == ("made Trainer\nend\n", "")
