"""Puts stand-in modules where an import looks for a package that is not installed."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def installed(name: str) -> bool:
    """Whether a top-level package can be imported as it is (a stand-in does not count)."""
    module = sys.modules.get(name)
    if module is not None:
        return not getattr(module, "__memtracker_stand_in__", False)
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def module(
    name: str, contents: Mapping[str, Any] | None = None, *, instead: ModuleType | None = None
) -> ModuleType:
    """A stand-in module under `name`, with the packages above it; `instead` is used as the module itself."""
    made = instead or ModuleType(name, "Stand-in of a package that is not installed.")
    made.__memtracker_stand_in__ = True  # type: ignore[attr-defined]
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    if not hasattr(made, "__path__"):
        made.__path__ = []  # type: ignore[attr-defined]
    for key, value in (contents or {}).items():
        setattr(made, key, value)
    sys.modules[name] = made
    parent, _, leaf = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            module(parent)
        setattr(sys.modules[parent], leaf, made)
    return made


_versions: dict[str, str] = {}


def answer_version(distribution: str, version: str) -> None:
    """`importlib.metadata.version(distribution)` answers for a stand-in; installed packages answer for themselves."""
    if not _versions:
        original = importlib.metadata.version

        def lookup(name: str) -> str:
            try:
                return original(name)
            except importlib.metadata.PackageNotFoundError:
                known = _versions.get(name.lower().replace("_", "-"))
                if known is None:
                    raise
                return known

        importlib.metadata.version = lookup  # type: ignore[assignment]
    _versions[distribution.lower().replace("_", "-")] = version
