"""The seam under every kernel library: the functions of a compiled extension module, in Python, allocation by allocation.

A kernel library is real Python over one compiled module (`transformer_engine_torch`, `amp_C`, `flash_attn_2_cuda`, ...).
Here stands the compiled module's place: an :class:`ExtensionModule` whose functions make the tensors that the C++ host code
makes (outputs, saved tensors, workspaces), in its order, and launch nothing. A :class:`KernelTable` collects those functions
with the place in the source that each was read from. A call of a function that the table does not have is answered with the
best guess there is and reported; it is never silent.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar

import torch

Evidence = Literal["source", "assumed"]
Function = TypeVar("Function", bound=Callable[..., Any])


class KernelHost(Protocol):
    """What a kernel needs of the run that it is called from. The recorder implements it."""

    def operator(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Allocations inside belong to the operator `name`."""
        ...

    def uncovered(self, kind: str, name: str, detail: str, assumption: str, nbytes: int) -> None:
        """An operator or kernel whose memory is not known, or an assumption. `nbytes` is -1 when the size is not known."""
        ...

    def external(self, name: str, category: str, nbytes: int, detail: dict[str, str]) -> None:
        """Device memory that the library takes past the caching allocator (cudaMalloc, NVSHMEM, ...)."""
        ...

    def view_of_external(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor over memory that was reported with `external`: no new memory."""
        ...


class DetachedHost:
    """The host while nobody records: kernels make tensors, reports are kept in a list."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str, str, str, int]] = []

    @contextlib.contextmanager
    def operator(self, name: str) -> Iterator[None]:
        yield

    def uncovered(self, kind: str, name: str, detail: str, assumption: str, nbytes: int) -> None:
        self.reports.append((kind, name, detail, assumption, nbytes))

    def external(self, name: str, category: str, nbytes: int, detail: dict[str, str]) -> None:
        self.reports.append(("external", name, category, str(detail), nbytes))

    def view_of_external(self, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")


_host: KernelHost = DetachedHost()
_assumed: set[str] = set()


def attach(host: KernelHost) -> None:
    """All kernels report to `host` from here on."""
    global _host
    _host = host
    _assumed.clear()


def host() -> KernelHost:
    return _host


def assume(name: str, assumption: str, nbytes: int, detail: str = "") -> None:
    """Says, once a run, that a kernel's size rests on an assumption."""
    if name in _assumed:
        return
    _assumed.add(name)
    _host.uncovered("kernel", name, detail, assumption, nbytes)


@dataclass(frozen=True)
class Provenance:
    """Where a kernel's allocations were read: project, version, file, function."""

    source: str
    evidence: Evidence
    note: str = ""


@dataclass
class KernelTable:
    """The functions of one extension module, each with its provenance."""

    module: str
    version: str
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    provenance: dict[str, Provenance] = field(default_factory=dict)

    def kernel(
        self, source: str, *names: str, evidence: Evidence = "source", note: str = ""
    ) -> Callable[[Function], Function]:
        """Registers a function under its own name, or under `names`."""

        def register(function: Function) -> Function:
            for name in names or (function.__name__,):
                self.functions[name] = self._as_operator(name, function)
                self.provenance[name] = Provenance(f"{self.version}, {source}", evidence, note)
            return function

        return register

    def no_allocation(self, source: str, *names: str) -> None:
        """Registers functions that work in place: they allocate nothing and return nothing."""

        def in_place(*_args: Any, **_kwargs: Any) -> None:
            return None

        for name in names:
            self.functions[name] = in_place
            self.provenance[name] = Provenance(f"{self.version}, {source}", "source", "in place")

    def _as_operator(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        operator = f"{self.module}::{name}"

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _host.operator(operator):
                return function(*args, **kwargs)

        return call


class ExtensionModule(ModuleType):
    """A module whose unknown functions answer, and report that they are unknown."""

    def __init__(self, name: str, table: KernelTable | None = None, **constants: Any) -> None:
        super().__init__(
            name, f"Stand-in of the compiled module {name}: allocates, launches nothing."
        )
        self.__file__ = f"<memtracker kernels: {name}>"
        self.__path__ = []  # type: ignore[attr-defined]
        for key, value in constants.items():
            setattr(self, key, value)
        if table is not None:
            for key, function in table.functions.items():
                setattr(self, key, function)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return functools.partial(unknown_call, self.__name__, name)


def unknown_call(module: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Answers a call that no table has: a tensor like the first tensor argument, or None when there is none.

    A guess, which proves nothing: it is reported as memory that nothing stands in for.
    """
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    answer = "a tensor like the first tensor argument" if tensors else "None"
    _host.uncovered(
        "kernel",
        f"{module}.{name}",
        ", ".join(
            [
                *(describe(value) for value in args),
                *(f"{key}={describe(value)}" for key, value in kwargs.items()),
            ]
        )
        + f"; answered with {answer}",
        "",
        -1,
    )
    if not tensors:
        return None
    with _host.operator(f"{module}::{name}"):
        return torch.empty_like(tensors[0])


def describe(value: Any) -> str:
    """An argument in a few characters, for a report."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(describe(item) for item in value[:4])}{', ...' if len(value) > 4 else ''}]"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
