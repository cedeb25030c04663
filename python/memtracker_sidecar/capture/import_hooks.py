"""Being told when a module has been imported, so that its functions can be labelled before anybody calls them.

A framework's training script may itself be the main module (`python -m torchtitan.train`): then its classes never pass through
an import, and are caught when they are made (`on_main_class`).
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

ModuleCallback = Callable[[ModuleType], None]
ClassCallback = Callable[[type], None]


class _TellingLoader(importlib.abc.Loader):
    """A module's own loader, with callbacks after it."""

    def __init__(self, loader: Any, tell: ModuleCallback) -> None:
        self._loader = loader
        self._tell = tell

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if nobody had been here: pickling and inspect ask for its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._tell(module)


class ImportHooks(importlib.abc.MetaPathFinder):
    """Calls back when modules are imported. One object a process; `install` once."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[ModuleCallback]] = {}
        self._classes: dict[tuple[str, str], list[ClassCallback]] = {}
        self._finding: set[str] = set()
        self._build_class: Any = None

    def install(self) -> None:
        """Puts the finder in front."""
        sys.meta_path.insert(0, self)

    def on_module(self, name: str, callback: ModuleCallback) -> None:
        """`callback(module)` once the module has been executed; at once when it already was."""
        module = sys.modules.get(name)
        if module is not None and not getattr(
            getattr(module, "__spec__", None), "_initializing", False
        ):
            callback(module)
            return
        self._callbacks.setdefault(name, []).append(callback)

    def on_main_class(self, module: str, name: str, callback: ClassCallback) -> None:
        """`callback(class)` when the main module, run as `module` (`python -m module` or its file), makes a class `name`."""
        self._classes.setdefault((module, name), []).append(callback)
        if self._build_class is None:
            self._build_class = builtins.__build_class__
            builtins.__build_class__ = self._made  # type: ignore[assignment]

    def _made(self, body: Any, name: str, *bases: Any, **options: Any) -> Any:
        made = self._build_class(body, name, *bases, **options)
        scope = getattr(body, "__globals__", {})
        if scope.get("__name__") == "__main__":
            for (module, class_name), callbacks in self._classes.items():
                if class_name == name and _main_is(module, scope):
                    for callback in callbacks:
                        callback(made)
        return made

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._callbacks or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _TellingLoader(spec.loader, self._tell)
        return spec

    def _tell(self, module: ModuleType) -> None:
        for callback in self._callbacks.pop(module.__name__, []):
            callback(module)


def _main_is(module: str, scope: dict[str, Any]) -> bool:
    """Whether the main module is the one that would be imported as `module`."""
    spec = scope.get("__spec__")
    if spec is not None:
        return bool(spec.name == module)
    file = str(scope.get("__file__", "")).replace("\\", "/")
    return file.endswith(module.replace(".", "/") + ".py")
