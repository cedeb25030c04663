"""Which nn.Module is running, in forward and in backward.

Forward: a stack kept by global module hooks. Backward: no hooks at all. Every autograd node carries the sequence number it got
in the forward; the tracker remembers which module was innermost at each number, so the node that the engine is running now
names the module whose backward this is. AccumulateGrad nodes have no such number but know their parameter.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.tables import Tables

_NO_SEQUENCE = (
    2**63
)  # AccumulateGrad: UINT64_MAX, torch/csrc/autograd/functions/accumulate_grad.cpp


class _Known:
    __slots__ = ("id", "reference", "name")

    def __init__(self, module_id: int, reference: weakref.ref[nn.Module], name: str) -> None:
        self.id = module_id
        self.reference = reference
        self.name = name


class ModuleTracker:
    """Module positions of one process."""

    def __init__(self, sink: EventSink, tables: Tables) -> None:
        self._sink = sink
        self._tables = tables
        self._known: dict[int, _Known] = {}
        self._roots: list[weakref.ref[nn.Module]] = []
        self._stack: list[
            tuple[int, int, int]
        ] = []  # module id, graph task it was entered in, pass
        self._sequence: list[int] = []
        self._sequence_owner: list[int] = []
        self._parameters: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._handles: list[Any] = []
        self._placed: tuple[int, int] | None = None
        self._names: dict[str, int] = {}
        self._count = 0
        self.on_root: Callable[[], None] | None = None
        """Called when a module is entered from outside of any module, in a forward."""
        self.in_optimizer = 0
        """Nesting of optimizer steps; allocations inside have the optimizer's pass."""

    # -- names

    def register(self, root: nn.Module, prefix: str = "") -> None:
        """Names a model and everything in it: fully qualified names as `named_modules` gives them.

        A second call (after parallelisms wrapped or replaced modules) adds what is new and keeps what is known.
        """
        if not any(known() is root for known in self._roots):
            self._roots.append(weakref.ref(root))
        parents: dict[str, int] = {}
        for name, module in root.named_modules(remove_duplicate=True):
            full = f"{prefix}.{name}" if prefix and name else prefix or name
            parent = parents.get(name.rpartition(".")[0], 0) if name else 0
            parents[name] = self._id_of(module, full or type(module).__name__, parent)

    def roots(self) -> list[nn.Module]:
        """The registered models that still exist."""
        return [root for root in (reference() for reference in self._roots) if root is not None]

    def name_of(self, module: nn.Module) -> str:
        """Fully qualified name, or the class name of a module that belongs to no registered model."""
        known = self._known.get(id(module))
        return (
            known.name
            if known is not None and known.reference() is module
            else type(module).__name__
        )

    def _id_of(self, module: nn.Module, name: str | None = None, parent: int = 0) -> int:
        known = self._known.get(id(module))
        if known is not None and known.reference() is module:
            return known.id
        self._count += 1
        name = type(module).__name__ if name is None else name
        string = self._tables.string
        self._sink.emit(
            protocol.module(self._count, parent, string(name), string(type(module).__qualname__))
        )
        self._known[id(module)] = _Known(self._count, weakref.ref(module), name)
        return self._count

    def note_parameter(self, parameter: torch.Tensor, module: nn.Module) -> None:
        """Remembers which module a parameter belongs to, for gradients that AccumulateGrad makes."""
        self._parameters[id(parameter)] = (weakref.ref(parameter), self._id_of(module))

    # -- hooks

    def install(self) -> None:
        """Hooks every module call of the process."""
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._enter),
            nn_module.register_module_forward_hook(self._exit, always_call=True),
        ]

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._stack.clear()

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        known = self._known.get(id(module))
        if known is None or known.reference() is not module:
            if not self._stack:
                self.register(module)
            module_id = self._id_of(module, None, self._stack[-1][0] if self._stack else 0)
        else:
            module_id = known.id
        task = torch._C._current_graph_task_id()
        step = protocol.PASS_FORWARD if task == -1 else protocol.PASS_RECOMPUTE
        if not self._stack and task == -1 and self.on_root is not None:
            self.on_root()
        self._stack.append((module_id, task, step))
        self._mark(module_id)
        self._sink.emit((protocol.MODULE_ENTER, module_id, step))

    def _exit(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        if torch.compiler.is_compiling() or not self._stack:
            return
        module_id, _, step = self._stack.pop()
        self._mark(self._stack[-1][0] if self._stack else 0)
        self._sink.emit((protocol.MODULE_EXIT, module_id, step))

    def _mark(self, owner: int) -> None:
        number = torch._C._autograd._get_sequence_nr()
        sequence = self._sequence
        if sequence and number <= sequence[-1]:
            if number == sequence[-1]:  # no node was made since: the later mark decides
                self._sequence_owner[-1] = owner
            return
        sequence.append(number)
        self._sequence_owner.append(owner)

    # -- position

    def place(self, name: str, step: int) -> None:
        """Says which module (fully qualified name) the code that follows belongs to, and in which pass, where no module is
        called: a graph that was made of the modules. `""` ends it."""
        if not name:
            self._placed = None
            return
        known = next((known.id for known in self._known.values() if known.name == name), 0)
        self._placed = (known or self._id_of_name(name), step)

    def _id_of_name(self, name: str) -> int:
        """The id of something that has a module's name and is none, such as a loss function."""
        found = self._names.get(name)
        if found is None:
            self._count += 1
            found = self._names[name] = self._count
            self._sink.emit(
                protocol.module(found, 0, self._tables.string(name), self._tables.string(""))
            )
        return found

    @property
    def stack_depth(self) -> int:
        """How many module calls are open."""
        return len(self._stack)

    @staticmethod
    def in_backward() -> bool:
        """Whether the autograd engine is running this code."""
        return bool(torch._C._current_graph_task_id() != -1)

    def current_name(self) -> str:
        """Name of the module that runs now, or an empty text."""
        module, _ = self.position()
        return next((known.name for known in self._known.values() if known.id == module), "")

    def position(self) -> tuple[int, int]:
        """(module id or 0, pass) of the code that is running now."""
        if self._placed is not None:
            return self._placed
        task = torch._C._current_graph_task_id()
        stack = self._stack
        if task == -1:
            if self.in_optimizer:
                return (stack[-1][0] if stack else 0), protocol.PASS_OPTIMIZER
            if stack:
                return stack[-1][0], protocol.PASS_FORWARD
            return 0, protocol.PASS_NONE
        if stack and stack[-1][1] == task:
            return stack[-1][0], protocol.PASS_RECOMPUTE
        return self._backward_module(), protocol.PASS_BACKWARD

    def _backward_module(self) -> int:
        node = torch._C._current_autograd_node()
        if node is None:
            return 0
        number = node._sequence_nr()
        if number >= _NO_SEQUENCE:
            variable = getattr(node, "variable", None)
            entry = self._parameters.get(id(variable))
            return entry[1] if entry is not None and entry[0]() is variable else 0
        place = bisect_right(self._sequence, number) - 1
        return self._sequence_owner[place] if place >= 0 else 0
