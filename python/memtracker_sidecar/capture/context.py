"""What a framework's `capture.py` (adapters/<framework>/) is given: an AdapterContext of a run that is real.

`capture.py` defines `install(context)`. It runs when torch has been imported and nothing of the framework has: hooks are put on with
`on_module` and `on_main_class`, with the same tables of phases as the adapter's own. What labels works as in a trace; what
fakes (`recording`, `rules`, `distributed`) is not there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.adapter_api import AdapterContext
from memtracker_sidecar.backward import BackwardPasses
from memtracker_sidecar.capture.import_hooks import ImportHooks
from memtracker_sidecar.capture.recording import Recording
from memtracker_sidecar.phases import Phases
from memtracker_sidecar.replacements import Replacements


class ModuleDepth:
    """How deep in modules the job is: what labels ask of the sidecar's ModuleTracker."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.stack_depth = 0
        self.in_optimizer = 0

    def install(self) -> None:
        """Counts module calls with torch's global hooks."""
        module = self._torch.nn.modules.module
        module.register_module_forward_pre_hook(self._enter)
        module.register_module_forward_hook(self._leave, always_call=True)

    def in_backward(self) -> bool:
        """Whether the autograd engine is running this code."""
        return bool(self._torch._C._current_graph_task_id() != -1)

    def _enter(self, *_: Any) -> None:
        self.stack_depth += 1

    def _leave(self, *_: Any) -> None:
        self.stack_depth = max(0, self.stack_depth - 1)


class OptimizerSteps:
    """Tells listeners of each optimizer step, as the sidecar's Owners does: (optimizer, begins)."""

    def __init__(self) -> None:
        self.on_optimizer_step: list[Callable[[Any, bool], None]] = []

    def install(self) -> None:
        """Hooks every optimizer (torch.optim's global hooks, torch 2.1 and later)."""
        # `torch.optim` has no attribute of this name: only the module table leads to it.
        optimizer = importlib.import_module("torch.optim.optimizer")
        optimizer.register_optimizer_step_pre_hook(lambda stepping, *_: self._tell(stepping, True))
        optimizer.register_optimizer_step_post_hook(
            lambda stepping, *_: self._tell(stepping, False)
        )

    def _tell(self, optimizer: Any, begins: bool) -> None:
        for listener in self.on_optimizer_step:
            listener(optimizer, begins)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Owners come from the inventory here: whatever else an adapter tells the sidecar's Owners is not needed."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: None


class CaptureContext(AdapterContext):
    """Labels one captured process. Does not call AdapterContext's constructor: there is no fake device to give it."""

    def __init__(self, torch: Any, recording: Recording, hooks: ImportHooks) -> None:
        self.phases = Phases(recording)
        self.replacements = Replacements()
        self.modules: Any = ModuleDepth(torch)
        self.owners: Any = OptimizerSteps()
        self.backward = BackwardPasses()
        self.steps_done = 0
        self._torch = torch
        self._capture = recording
        self._hooks = hooks

    def prepare(self) -> None:
        """Puts on what every framework's labels rest on."""
        self.modules.install()
        self.owners.install()
        self.owners.on_optimizer_step.append(self._stepped)
        if hasattr(self._torch.autograd.graph, "_engine_run_backward"):  # torch 2.2 and later
            self.backward.install(self.replacements)

    def _stepped(self, optimizer: Any, begins: bool) -> None:
        if not begins:
            self.register_optimizer(optimizer)

    def on_module(self, name: str, callback: Callable[[ModuleType], None]) -> None:
        """`callback(module)` as soon as the module has been imported."""
        self._hooks.on_module(name, callback)

    def on_main_class(self, module: str, name: str, callback: Callable[[type], None]) -> None:
        """`callback(class)` when `python -m module` (or its file) makes a class of this name."""
        self._hooks.on_main_class(module, name, callback)

    def register_model(self, model: Any, prefix: str = "") -> None:
        """Its parameters, gradients and buffers are in the inventory from now on."""
        self._capture.inventory.add_model(model, prefix)

    def register_optimizer(self, optimizer: Any) -> None:
        """Its states are in the inventory. Optimizers of torch.optim are found when they step."""
        self._capture.inventory.add_optimizer(optimizer)

    def step_done(self) -> None:
        """One optimizer step is complete. A captured job runs as long as it wants."""
        self.steps_done += 1

    def progress(self, text: str, step: int | None = None) -> None:
        """The job talks to its user by itself."""

    def log(self, text: str, level: int = 0) -> None:
        """The job talks to its user by itself."""

    def facts(self, topic: str, facts: protocol.Fields) -> None:
        """Kept with the recording."""
        self._capture.facts[topic] = dict(facts)

    def uncovered(
        self, kind: str, name: str, *, detail: str = "", assumption: str = "", bytes: int = -1
    ) -> None:
        """What is not labelled is kept with the recording; nothing of a real run's memory is uncovered."""
        self._capture.facts.setdefault("not_labelled", []).append(f"{name}: {detail or assumption}")

    @contextmanager
    def _no_recording(self) -> Iterator[None]:
        raise RuntimeError("a captured run is not traced")
        yield

    def recording(self) -> Any:
        """Not available: the run is real."""
        return self._no_recording()
