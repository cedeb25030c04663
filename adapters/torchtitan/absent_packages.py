"""Stand-ins for packages that a checkout imports for input and output and that the environment does not have.

Logging, tokenizing, data reading and checkpoint writing are switched off in a trace, so a name from such a package is
only ever imported, subclassed or put into a default of a dataclass. A stand-in gives exactly that: every attribute is
an empty class. Packages that compute (torchao, einops, spmd_types, fla, …) are never replaced: what they allocate is
the point of the run, so a missing one ends it with the command that installs it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

INPUT_OUTPUT_PACKAGES = (
    "av",
    "blobfile",
    "datasets",
    "grain",
    "PIL",
    "safetensors",
    "sentencepiece",
    "tensorboard",
    "tiktoken",
    "tokenizers",
    "torch_checkpointing",
    "torchdata",
    "torchft",
    "torchvision",
    "wandb",
)


class _StandInType(type):
    """Classes of a stand-in answer to class attributes, subscription and unions, as annotations use them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in_class(name)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __or__(cls, _: Any) -> Any:  # type: ignore[override]
        return cls

    def __ror__(cls, _: Any) -> Any:  # type: ignore[override]
        return cls


class _StandIn(metaclass=_StandInType):
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in_class(name)()


def _stand_in_class(name: str) -> type:
    return _StandInType(name, (_StandIn,), {})


class StandInModule(types.ModuleType):
    __path__: ClassVar[list[str]] = []  # type: ignore[misc]  # marks a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _stand_in_class(name)
        setattr(self, name, made)
        return made


def _asked_by_checkout() -> bool:
    """Whether TorchTitan's own code imports. A library that looks whether a package is there must be told the truth."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and name.partition(".")[0] != "importlib":
            return "torchtitan" in frame.f_code.co_filename or name == "train"
        frame = frame.f_back  # type: ignore[assignment]
    return False


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: Iterable[str]) -> None:
        self._packages = frozenset(packages)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] in self._packages and _asked_by_checkout():
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


def stand_in_for_absent(
    packages: Iterable[str] = INPUT_OUTPUT_PACKAGES,
) -> tuple[str, ...]:
    """Installs stand-ins for those packages that cannot be found, and returns their names."""
    absent = tuple(
        name
        for name in packages
        if name not in sys.modules and importlib.util.find_spec(name) is None
    )
    if absent:
        sys.meta_path.append(_Finder(absent))
    if "tensorboard" in absent:
        # torch.utils.tensorboard looks up tensorboard's version at import and refuses a stand-in.
        writer = types.ModuleType("torch.utils.tensorboard")
        writer.SummaryWriter = _stand_in_class("SummaryWriter")  # type: ignore[attr-defined]
        sys.modules["torch.utils.tensorboard"] = writer
    return absent
