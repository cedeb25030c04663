"""One traced run: puts the parts together, enters the modes, and takes everything off again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memtracker_sidecar import (
    ddp,
    fake_cuda,
    flex_attention,
    fsdp2,
    fsdp2_chunks,
    missing_fakes,
    protocol,
    tensor_construction,
    triton_launch,
)
from memtracker_sidecar.adapter_api import AdapterContext, Plan
from memtracker_sidecar.attention import (
    AttentionChoice,
    install_convolution,
    install_flash_implementations,
)
from memtracker_sidecar.backward import BackwardPasses
from memtracker_sidecar.compile import Compilation
from memtracker_sidecar.data_dependent import DataDependentPolicies, install_conversions
from memtracker_sidecar.devices import Devices
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.fake_distributed import FakeDistributed
from memtracker_sidecar.garbage import GarbageReports
from memtracker_sidecar.gradient_accumulation import GradientAccumulation
from memtracker_sidecar.modules import ModuleTracker
from memtracker_sidecar.owners import Owners
from memtracker_sidecar.phases import Phases
from memtracker_sidecar.recorder import LiveBytes, StorageRecorder
from memtracker_sidecar.replacements import Replacements
from memtracker_sidecar.symmetric_memory import SymmetricMemory
from memtracker_sidecar.tables import Tables
from memtracker_sidecar.uncovered import UncoveredReports
from memtracker_sidecar.worker_spec import WorkerSpec
from memtracker_sidecar.workspaces import default_rules, gpu_limits


class Run:
    """Everything that belongs to one rank's trace."""

    def __init__(
        self, spec: WorkerSpec, sink: EventSink, *, allow_fallback_kernels: bool = True
    ) -> None:
        self.spec = spec
        self.sink = sink
        self.replacements = Replacements()
        self.tables = Tables(sink, spec.stack_depth)
        self.devices = Devices(sink, spec.gpu)
        self.modules = ModuleTracker(sink, self.tables)
        self.phases = Phases(sink)
        self.live_bytes = LiveBytes()
        fake_cuda.install(
            self.replacements,
            spec.gpu,
            device_count=min(spec.world, spec.gpus_per_node),
            current=spec.local_rank,
            sink=sink,
            counters=self.live_bytes,
        )
        self.rules = default_rules()
        self.fake_mode = FakeTensorMode(
            allow_non_fake_inputs=True, allow_fallback_kernels=allow_fallback_kernels
        )
        self.recorder = StorageRecorder(
            sink,
            self.tables,
            self.devices,
            self.modules,
            fake_mode=self.fake_mode,
            rules=self.rules,
            gpu=gpu_limits(spec.gpu),
            live=self.live_bytes,
        )
        self.uncovered = UncoveredReports(sink, self.tables, self.modules)
        self.data_dependent = DataDependentPolicies(self.uncovered)
        self.data_dependent.install(self.recorder)
        install_conversions(self.replacements, self.uncovered)
        self.gradients = GradientAccumulation(self.recorder)
        self.gradients.install()
        missing_fakes.install(self.replacements, self.uncovered)
        self.compilation = Compilation(self.replacements, self.uncovered)
        self.compilation.install()
        self.owners = Owners(sink, self.tables, self.recorder, self.modules)
        self.owners.claim_inputs()
        fsdp2.install(self.replacements, self.owners)
        fsdp2_chunks.install(self.replacements)
        ddp.install(self.replacements, self.owners)
        self.backward = BackwardPasses()
        self.backward.install(self.replacements)
        self.backward.listeners.append(self._backward)
        self.distributed = FakeDistributed(
            sink,
            self.tables,
            self.recorder,
            self.replacements,
            world=spec.world,
            rank=spec.rank,
            gpus_per_node=spec.gpus_per_node,
        )
        self.distributed.install()
        self.distributed.collectives.received = self.data_dependent.known.forget
        SymmetricMemory(sink, self.recorder).install(self.replacements)
        self.attention = AttentionChoice(spec.gpu.capability, self.uncovered)
        self.attention.install()
        install_convolution(self.replacements, self.recorder, self.uncovered)
        install_flash_implementations(self.replacements, self.uncovered)
        flex_attention.install(self.replacements, self.uncovered)
        tensor_construction.install(self.replacements, self.data_dependent.known)
        triton_launch.install(self.replacements, spec.gpu.capability, self.uncovered)
        self._garbage = GarbageReports(sink)

    def context(self, plan: Plan) -> AdapterContext:
        """What the adapter gets."""
        return AdapterContext(
            spec=self.spec,
            plan=plan,
            emit=self.sink.emit,
            recorder=self.recorder,
            phases=self.phases,
            owners=self.owners,
            modules=self.modules,
            backward=self.backward,
            data_dependent=self.data_dependent,
            distributed=self.distributed,
            rules=self.rules,
            replacements=self.replacements,
            recording=self.recording,
            uncovered=self.uncovered,
        )

    def _backward(self, begins: bool) -> None:
        if begins:
            self.owners.backward_starts()
        else:
            self.owners.backward_ends()

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Fake tensors and the recorder are on inside."""
        self.devices.id_of(torch.device("cuda", torch.cuda.current_device()))
        self.modules.install()
        handles = self.owners.install()
        self._garbage.install()
        try:
            with self.fake_mode, self.recorder:
                with self.backward.unheard():
                    self.gradients.calibrate()
                yield
        finally:
            self._garbage.remove()
            for handle in handles:
                handle.remove()
            self.modules.remove()

    def counts(self) -> protocol.Fields:
        """Totals for the close event."""
        return {
            "operators": self.recorder.operators,
            "storages": self.recorder.storages,
            "uncovered": self.uncovered.count,
        }

    def finish(self) -> None:
        """Closes open phases and takes every replacement off."""
        self.phases.end_all()
        self.attention.remove()
        self.replacements.restore()
