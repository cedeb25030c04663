"""What a framework adapter is, and what it is given.

An adapter is the folder `adapters/<framework>/` with `manifest.json` and `adapter.py`, which defines a class named `Adapter`
that derives from `Adapter` here. The worker calls, in this order:

    detect(checkout)    is this folder a checkout of the framework? Runs before anything is imported from it.
    plan(spec)          the framework's own argument line, and the environment variables it needs.
    install(context)    hooks put on from outside, each checked with `context.require` first. No modes are active: what is
                        imported here is imported as in a real job.
    run(context)        starts the framework. What stands inside `with context.recording():` runs on fake tensors and is
                        recorded; the adapter decides where that begins.

An adapter never edits the checkout. It replaces attributes through `context.replacements` (with a reason, which is part of the
trace), opens phases, registers models and optimizers, and ends the run with `context.step_done()`.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from memtracker_sidecar import protocol
from memtracker_sidecar.rank_layout import CONTEXT_NAMES
from memtracker_sidecar.worker_spec import OptionValue, WorkerSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from memtracker_sidecar.backward import BackwardPasses
    from memtracker_sidecar.data_dependent import DataDependentPolicies
    from memtracker_sidecar.fake_distributed import FakeDistributed
    from memtracker_sidecar.modules import ModuleTracker
    from memtracker_sidecar.owners import Owners
    from memtracker_sidecar.phases import Phases
    from memtracker_sidecar.recorder import StorageRecorder
    from memtracker_sidecar.replacements import Replacements
    from memtracker_sidecar.workspace_rules import WorkspaceRules

Value = TypeVar("Value", str, int, float, bool)
_UNSET: Any = object()


class AdapterProblem(RuntimeError):
    """The run cannot start, and the user can do something about it. The message is one paragraph that says what."""


class NotThisFramework(AdapterProblem):
    """The checkout is missing or is not of this framework."""


class InterfaceChanged(AdapterProblem):
    """The checkout does not have what the adapter hooks; names the module and the attribute."""


class ArgumentsRefused(AdapterProblem):
    """The framework refused its arguments; the message is the framework's own."""


class TrainingDone(BaseException):
    """Raised through the framework's loop when enough steps ran. Not an Exception: `except Exception` must not hold it."""


@dataclass(frozen=True)
class Detection:
    """What `Adapter.detect` found."""

    matches: bool
    reason: str
    """Why it matches or does not, with the file that decided it."""
    version: str = ""
    """The framework's own version text, where there is one."""


@dataclass(frozen=True)
class Plan:
    """How the framework is started."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to what a launcher sets (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT)."""
    python_path: tuple[Path, ...] = ()
    """Put in front of sys.path."""
    facts: Mapping[str, protocol.Scalar] = field(default_factory=dict)
    """Reported as the run's plan."""


class AdapterContext:
    """What the worker gives an adapter."""

    def __init__(
        self,
        *,
        spec: WorkerSpec,
        plan: Plan,
        emit: Callable[[protocol.Event], None],
        recorder: StorageRecorder,
        phases: Phases,
        owners: Owners,
        modules: ModuleTracker,
        backward: BackwardPasses,
        distributed: FakeDistributed,
        data_dependent: DataDependentPolicies,
        rules: WorkspaceRules,
        replacements: Replacements,
        recording: Callable[[], contextlib.AbstractContextManager[None]],
        uncovered: Callable[..., None],
    ) -> None:
        self.spec = spec
        self.plan = plan
        self.emit = emit
        self.recorder = recorder
        self.phases = phases
        self.owners = owners
        self.modules = modules
        self.backward = backward
        self.distributed = distributed
        self.data_dependent = data_dependent
        self.rules = rules
        self.replacements = replacements
        self._recording = recording
        self._uncovered = uncovered
        self.steps_done = 0

    # -- the checkout's interface

    def require(self, module: str, attribute: str = "", *, why: str = "") -> Any:
        """Imports `module` and returns it, or its (dotted) `attribute`.

        Raises:
            InterfaceChanged: naming what is missing and what it is needed for.
        """
        purpose = f"; it is needed for {why}" if why else ""
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and not module.startswith(error.name):
                raise AdapterProblem(
                    f"{module} needs the Python package `{error.name}`, which is not installed; install it into the "
                    f"environment that memtracker uses"
                ) from error
            raise InterfaceChanged(f"this checkout has no module {module}{purpose}") from error
        for part in attribute.split(".") if attribute else ():
            if not hasattr(found, part):
                raise InterfaceChanged(f"{module} of this checkout has no `{attribute}`{purpose}")
            found = getattr(found, part)
        return found

    def replace(self, module: str, attribute: str, make: Callable[[Any], Any], reason: str) -> Any:
        """Replaces `module.attribute` by `make(original)`; the attribute may be dotted (`Class.method`).

        Returns the original. Raises `InterfaceChanged` like `require`.
        """
        owner_path, _, name = attribute.rpartition(".")
        why = f"a hook ({reason})"
        owner = self.require(module, owner_path, why=why)
        original = self.require(module, attribute, why=why)
        self.replacements.set(owner, name, make(original), reason)
        return original

    def option(self, name: str, default: Value) -> Value:
        """An option of the command line (`--option name=value`), of the default's type.

        Raises:
            AdapterProblem: the value is of another type.
        """
        value: OptionValue = self.spec.options.get(name, default)
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if type(value) is not type(default):
            raise AdapterProblem(
                f"option {name} is {value!r}; a {type(default).__name__} is expected"
            )
        return value  # type: ignore[return-value]

    # -- running

    def recording(self) -> contextlib.AbstractContextManager[None]:
        """Fake tensors and the recorder, for the length of the block."""
        return self._recording()

    @contextlib.contextmanager
    def phase(self, name: str, **labels: protocol.Scalar) -> Iterator[None]:
        """A labelled span: `with context.phase("init/model"): ...`. Labels: step, micro_batch, chunk, stage."""
        with self.phases.phase(name, **labels):
            yield

    def wrap_phase(self, module: str, attribute: str, name: str, **labels: protocol.Scalar) -> None:
        """Puts a phase around a function of the checkout."""
        self.replace(
            module,
            attribute,
            lambda original: self.phases.wrap(original, name, **labels),
            f"phase {name}",
        )

    def register_model(self, model: nn.Module, prefix: str = "") -> None:
        """Names the modules, parameters and buffers of a model (again after parallelisms wrapped it)."""
        self.modules.register(model, prefix)
        self.owners.sweep_model(model, prefix)

    def register_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Names the states of an optimizer. Optimizers that torch.optim's hooks see are found without it."""
        self.owners.sweep_optimizer(optimizer)

    def step_done(self) -> None:
        """One optimizer step of the job is complete.

        Raises:
            TrainingDone: as many as were asked for ran.
        """
        self.steps_done += 1
        self.progress(f"step {self.steps_done} of {self.spec.steps}", self.steps_done)
        if self.steps_done >= self.spec.steps:
            raise TrainingDone

    # -- reporting

    def progress(self, text: str, step: int | None = None) -> None:
        """For people: where the run is."""
        self.emit(
            protocol.progress(text, self.steps_done if step is None else step, self.spec.steps)
        )

    def log(self, text: str, level: int = logging.INFO) -> None:
        """A message for the user."""
        self.emit(protocol.log(logging.getLevelName(level).lower(), text))

    def facts(self, topic: str, facts: protocol.Fields) -> None:
        """Facts of the run: the effective config, versions, what was replaced."""
        self.emit(protocol.run(topic, facts))

    def rank_layout(
        self, dimensions: Mapping[str, int], differing: Sequence[str] = ("pp",)
    ) -> None:
        """How ranks are laid out, outermost dimension first; see rank_layout.py."""
        self.distributed.layout.state(
            dimensions,
            [name for name in differing if name in dimensions],
            [name for name in CONTEXT_NAMES if name in dimensions],
        )

    def uncovered(
        self, kind: str, name: str, *, detail: str = "", assumption: str = "", bytes: int = -1
    ) -> None:
        """Something whose memory is not known, or an assumption that was taken; reported once for each call site.

        kind: operator, kernel, data_dependent or feature. `assumption` empty: nothing stands in for it.
        """
        self._uncovered(kind, name, detail=detail, assumption=assumption, bytes=bytes)


class Adapter(abc.ABC):
    """One framework."""

    @abc.abstractmethod
    def detect(self, checkout: Path | None) -> Detection:
        """Whether `checkout` is of this framework. Reads files only; imports nothing from it."""

    @abc.abstractmethod
    def plan(self, spec: WorkerSpec) -> Plan:
        """The start of the framework for `spec`.

        Raises:
            AdapterProblem: the specification cannot be run.
        """

    @abc.abstractmethod
    def install(self, context: AdapterContext) -> None:
        """Puts the hooks on. Raises `InterfaceChanged` when something to hook is missing."""

    @abc.abstractmethod
    def run(self, context: AdapterContext) -> None:
        """Runs the training. Returns, or lets `TrainingDone` pass, when enough steps ran."""
