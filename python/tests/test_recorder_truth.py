"""The ledger against what PyTorch itself counts, on real CPU tensors: no fake tensors, no model of ours in between."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from conftest import GPU, ListSink, Trace
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from memtracker_sidecar import protocol
from memtracker_sidecar.devices import CPU_DEVICE, Devices
from memtracker_sidecar.modules import ModuleTracker
from memtracker_sidecar.owners import Owners
from memtracker_sidecar.recorder import StorageRecorder
from memtracker_sidecar.tables import Tables
from memtracker_sidecar.workspace_rules import WorkspaceRules
from memtracker_sidecar.workspaces import gpu_limits


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int, layers: int, recompute: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        return x


def training(
    recompute: bool,
    options: dict[str, bool],
    between: Callable[[], None] = lambda: None,
    batch: int = 64,
) -> Callable[[], None]:
    """Two steps on a model; everything is made inside, so that nothing is alive before or after."""

    def train() -> None:
        torch.manual_seed(0)
        model = Model(128, 4, recompute)
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for _ in range(2):
            model(torch.randn(batch, 128)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            between()

    return train


def profiled_peak(train: Callable[[], None]) -> int:
    """Largest number of live bytes that the CPU allocator reported to the profiler."""
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=False
    ) as profiler:
        train()
        gc.collect()
    now = most = 0
    memory = [
        event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    assert most > 0, "the profiler reported no allocations"
    return most


def recorded(train: Callable[[], None]) -> Trace:
    sink = ListSink()
    tables = Tables(sink, 0)
    modules = ModuleTracker(sink, tables)
    recorder = StorageRecorder(
        sink,
        tables,
        Devices(sink, GPU),
        modules,
        fake_mode=None,
        rules=WorkspaceRules(),
        gpu=gpu_limits(GPU),
    )
    owners = Owners(sink, tables, recorder, modules)
    handles = owners.install()
    modules.install()
    try:
        with recorder:
            train()
            gc.collect()
    finally:
        modules.remove()
        for handle in handles:
            handle.remove()
    return Trace(sink.events)


@pytest.mark.parametrize("recompute", [False, True], ids=["saved", "recomputed"])
@pytest.mark.parametrize(
    "options",
    [{"foreach": True}, {"foreach": False}, {"fused": True}],
    ids=["foreach", "loop", "fused"],
)
def test_the_peak_is_the_cpu_allocators(recompute: bool, options: dict[str, bool]) -> None:
    train = training(recompute, options)
    train()  # warms caches of oneDNN and of autograd
    truth = profiled_peak(train)
    trace = recorded(train)
    # What remains are temporaries inside CPU kernels, which a dispatch mode does not see.
    assert trace.peak(CPU_DEVICE) <= truth
    assert trace.peak(CPU_DEVICE) == pytest.approx(truth, rel=2e-3)


def test_nothing_is_alive_in_the_end() -> None:
    trace = recorded(training(False, {"foreach": True}))
    assert len(trace.of(10)) == len(trace.of(11)) > 100


def categories(trace: Trace) -> dict[str, int]:
    """Bytes at the first instant of the peak, in MemTracker's categories."""
    owners = trace.owners()
    steps = {event[1]: event[9] for event in trace.of(protocol.ALLOC)}
    live: dict[int, int] = {}
    most: dict[int, int] = {}
    for event in trace.events:
        if event[0] in (protocol.ALLOC, protocol.RESIZE):
            live[event[1]] = event[2]
        elif event[0] == protocol.FREE:
            del live[event[1]]
        if sum(live.values()) > sum(most.values()):
            most = dict(live)
    names = {
        protocol.OWNER_PARAMETER: "Parameter",
        protocol.OWNER_BUFFER: "Buffer",
        protocol.OWNER_GRADIENT: "Gradient",
        protocol.OWNER_ACTIVATION: "Activation",
        protocol.OWNER_OPTIMIZER_STATE: "Optstate",
    }
    # MemTracker calls everything that is made in an optimizer step its state, and the rest by the pass that made it.
    passes = {
        protocol.PASS_OPTIMIZER: "Optstate",
        protocol.PASS_BACKWARD: "Temp",
        protocol.PASS_RECOMPUTE: "Activation",
        protocol.PASS_FORWARD: "Activation",
        protocol.PASS_NONE: "Activation",  # the input and the loss, made outside of modules
    }
    found: dict[str, int] = {}
    for storage, size in most.items():
        kind = owners.get(storage, (0, ""))[0]
        name = names.get(kind) or passes.get(steps[storage], "Other")
        found[name] = found.get(name, 0) + size
    return found


@pytest.mark.parametrize("batch", [64, 8192], ids=["in the optimizer", "in the backward"])
@pytest.mark.parametrize("recompute", [False, True], ids=["saved", "recomputed"])
def test_the_peak_is_memtrackers_by_category(recompute: bool, batch: int) -> None:
    tracker = MemTracker()
    train = training(recompute, {"foreach": True}, tracker.reset_mod_stats, batch)
    with tracker:
        train()
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    theirs = {getattr(key, "value", key): size for key, size in snapshot.items() if size}
    trace = recorded(training(recompute, {"foreach": True}, batch=batch))
    assert trace.peak(CPU_DEVICE) == theirs.pop("Total")
    ours = categories(trace)
    # The gradient that autograd is just handing over is Temp to MemTracker, and a gradient from its birth here.
    for found in (ours, theirs):
        found["Gradient"] = found.pop("Gradient", 0) + found.pop("Temp", 0)
    assert ours == theirs
