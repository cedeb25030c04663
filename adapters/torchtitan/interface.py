"""The part of a checkout that the adapter holds on to, name by name, and what is missing of it.

Nothing in a checkout is patched on disk. The adapter wraps a few named functions from outside; when a checkout renamed
one of them, the run must not go on with a label or an assumption silently lost. So every name that is used stands in a
table of `Need`s, with what it is for, and the table is checked before anything is wrapped.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from memtracker_sidecar.adapter_api import InterfaceChanged


@dataclass(frozen=True)
class Need:
    """One attribute of the checkout (`module`, dotted `attribute`) and what the adapter does with it."""

    module: str
    attribute: str
    purpose: str
    required: bool = True

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute} ({self.purpose})"


def holder_of(module: str, attribute: str) -> tuple[Any, str] | None:
    """The object whose attribute the last part of `attribute` names, and that last part; None when it is not there.

    Raises:
        ImportError: the module exists but cannot be imported for a reason of its own (a package is missing).
    """
    try:
        holder: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            return None
        raise
    *path, last = attribute.split(".")
    for part in path:
        if not hasattr(holder, part):
            return None
        holder = getattr(holder, part)
    return (holder, last) if hasattr(holder, last) else None


def require(generation: str, needs: Iterable[Need]) -> tuple[Need, ...]:
    """Checks the table and returns the optional needs that the checkout does not have.

    Raises:
        InterfaceChanged: a required name is missing.
    """
    missing = [need for need in needs if holder_of(need.module, need.attribute) is None]
    required = [need for need in missing if need.required]
    if required:
        lines = "; ".join(str(need) for need in required)
        raise InterfaceChanged(
            f"this TorchTitan checkout looks like the {generation!r} generation, but lacks {lines}; use a checkout that "
            f"has these names, or adapt adapters/torchtitan to the new ones"
        )
    return tuple(missing)
