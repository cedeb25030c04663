"""What a storage is for: parameter, gradient, buffer, optimizer state, activation, input, …

Three ways, none of which keeps a tensor alive or changes when it dies:

* sweeps over what the framework itself holds (models, gradients, optimizer states) at the points where that changes: when a
  model is registered, when a backward starts, around an optimizer step;
* a rule at the birth: a copy from host to device outside of any module is an input;
* at the start of a backward, what a forward left behind and nothing else claims is an activation: it is alive because the
  backward needs it.

An owner holds for the whole life of the storage in reports; the event stands where it became known.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from memtracker_sidecar import protocol
from memtracker_sidecar.devices import CPU_DEVICE
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.modules import ModuleTracker
from memtracker_sidecar.recorder import LiveStorage, StorageRecorder
from memtracker_sidecar.tables import Tables

# Categories that a later, better known one may replace.
_WEAK = frozenset(
    {
        protocol.OWNER_UNATTRIBUTED,
        protocol.OWNER_ACTIVATION,
        protocol.OWNER_INPUT,
        protocol.OWNER_OTHER,
    }
)


class Owners:
    """Owners of the storages of one process."""

    def __init__(
        self, sink: EventSink, tables: Tables, recorder: StorageRecorder, modules: ModuleTracker
    ) -> None:
        self._sink = sink
        self._tables = tables
        self._recorder = recorder
        self._modules = modules
        self._first_of_forward: int | None = None
        modules.on_root = self._forward_begins
        self.on_optimizer_step: list[Callable[[torch.optim.Optimizer, bool], None]] = []
        """Called with (optimizer, begins) around each optimizer step."""
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}

    def claim(self, tensor: torch.Tensor | None, category: int, name: str) -> None:
        """The storage (or storages) of `tensor` belong to `category` (an `OWNER_…` of the protocol) under `name`."""
        if tensor is None:
            return
        for live in self._recorder.find(tensor):
            self.claim_storage(live, category, name)

    def claim_storage(self, live: LiveStorage, category: int, name: str) -> None:
        """Like `claim`, for a live storage. The first strong claim stays."""
        if live.owner == category or (live.owner not in _WEAK and category in _WEAK):
            return
        if live.owner == protocol.OWNER_GRADIENT_BUCKET and category == protocol.OWNER_GRADIENT:
            return  # a gradient that is a view of its bucket
        live.owner = category
        self._sink.emit((protocol.OWNER, live.id, category, self._tables.string(name)))

    def claim_inputs(self) -> None:
        """From now on, what is copied from the host outside of any module is an input until something else claims it."""

        def copied(func: Any, args: Any, kwargs: Any, result: Any) -> None:
            if result.device.type == "cuda" and args[0].device.type == "cpu":
                for live in self._recorder.find(result):
                    if (
                        live.step == protocol.PASS_NONE
                        and live.owner == protocol.OWNER_UNATTRIBUTED
                    ):
                        self.claim_storage(live, protocol.OWNER_INPUT, "")

        self._recorder.after[torch.ops.aten._to_copy.default] = copied

    # -- sweeps

    def sweep_model(self, model: nn.Module, prefix: str = "") -> None:
        """Claims parameters, their gradients, and buffers."""
        for path, module in model.named_modules():
            base = f"{prefix}.{path}" if prefix and path else prefix or path
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    name = f"{base}.{key}" if base else key
                    self._names[id(parameter)] = (weakref.ref(parameter), name)
                    self._modules.note_parameter(parameter, module)
                    self.claim(parameter, protocol.OWNER_PARAMETER, name)
                    if parameter.grad is not None:
                        self.claim(parameter.grad, protocol.OWNER_GRADIENT, name)
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    self.claim(buffer, protocol.OWNER_BUFFER, f"{base}.{key}" if base else key)

    def sweep_models(self) -> None:
        """Sweeps every registered model."""
        for root in self._modules.roots():
            self.sweep_model(root)

    def sweep_gradients(self, parameters: Iterable[torch.Tensor]) -> None:
        """Claims the gradients that exist now."""
        for parameter in parameters:
            if parameter.grad is not None:
                self.claim(parameter.grad, protocol.OWNER_GRADIENT, self.name_of(parameter))

    def sweep_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Claims the tensors in the states of an optimizer."""
        for parameter, state in optimizer.state.items():
            name = self.name_of(parameter)
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    category = (
                        protocol.OWNER_MAIN_PARAMETER
                        if key == "master_param"
                        else protocol.OWNER_OPTIMIZER_STATE
                    )
                    self.claim(value, category, f"{name}.{key}" if name else key)

    def name_of(self, parameter: Any) -> str:
        """Fully qualified name of a parameter, if a sweep met it."""
        known = self._names.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else ""

    def _forward_begins(self) -> None:
        if self._first_of_forward is None:
            self._first_of_forward = self._recorder.storages + 1

    def backward_starts(self) -> None:
        """Claims as activations what was made since the forward began (loss functions outside of modules too) and is alive."""
        first = self._first_of_forward
        if first is None or self._inside_forward():
            return
        for live in self._recorder.live_storages():
            if (
                live.id >= first
                and live.owner == protocol.OWNER_UNATTRIBUTED
                and live.device != CPU_DEVICE
            ):
                live.owner = protocol.OWNER_ACTIVATION
                self._sink.emit((protocol.OWNER, live.id, protocol.OWNER_ACTIVATION, 0))

    def backward_ends(self) -> None:
        """Claims the gradients that the backward made."""
        if self._inside_forward():
            return
        self._first_of_forward = None
        self.sweep_models()

    def _inside_forward(self) -> bool:
        """Autograd also runs inside a forward, to derive a kernel's backward (flex attention): the job's backward is still to come."""
        return self._modules.stack_depth > 0

    # -- hooks

    def install(self) -> list[Any]:
        """Hooks optimizers (torch.optim's global step hooks). Returns handles to remove."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        def before(optimizer: torch.optim.Optimizer, _arguments: Any, _options: Any) -> None:
            for listener in self.on_optimizer_step:
                listener(optimizer, True)
            self._modules.in_optimizer += 1
            self.sweep_models()
            self.sweep_gradients(
                parameter for group in optimizer.param_groups for parameter in group["params"]
            )

        def after(optimizer: torch.optim.Optimizer, _arguments: Any, _options: Any) -> None:
            self._modules.in_optimizer = max(0, self._modules.in_optimizer - 1)
            self.sweep_optimizer(optimizer)
            for listener in self.on_optimizer_step:
                listener(optimizer, False)

        return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
