"""Attributes of PyTorch and of frameworks that are replaced from outside, each with its reason.

Nothing in a user's checkout or environment is edited: an attribute is replaced for the life of the run and put back
afterwards. The list of what was replaced, and why, is part of the trace.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

_MISSING = object()


class Replacements:
    """Replaces attributes and can put them all back, in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []
        self.reasons: dict[str, str] = {}
        """`owner.attribute` -> why it is replaced."""

    def set(self, owner: Any, attribute: str, value: Any, reason: str) -> None:
        """Replaces one attribute of a module, class or object."""
        if isinstance(owner, types.ModuleType):  # a module of settings keeps them elsewhere
            old = getattr(owner, attribute, _MISSING)
        else:
            old = (vars(owner) if hasattr(owner, "__dict__") else {}).get(attribute, _MISSING)
        self._undo.append((owner, attribute, old))
        setattr(owner, attribute, value)
        name = (
            getattr(owner, "__qualname__", None)
            or getattr(owner, "__name__", None)
            or type(owner).__name__
        )
        self.reasons[f"{name}.{attribute}"] = reason

    def set_all(self, owner: Any, values: Mapping[str, Any], reason: str) -> None:
        """Replaces several attributes for one reason; attributes that this version does not have are added."""
        for attribute, value in values.items():
            self.set(owner, attribute, value, reason)

    def set_existing(self, owner: Any, values: Mapping[str, Any], reason: str) -> None:
        """Like `set_all`, but leaves out what this version of the library does not have."""
        self.set_all(
            owner, {name: value for name, value in values.items() if hasattr(owner, name)}, reason
        )

    def set_everywhere(
        self, module: Any, attribute: str, value: Any, reason: str, within: str = "torch."
    ) -> None:
        """Replaces a module's function also where modules that are already imported hold it under the same name."""
        original = getattr(module, attribute)
        self.set(module, attribute, value, reason)
        for name, other in list(sys.modules.items()):
            if name.startswith(within) and vars(other).get(attribute) is original:
                self.set(other, attribute, value, reason)

    def restore(self) -> None:
        """Puts everything back."""
        while self._undo:
            owner, attribute, old = self._undo.pop()
            if old is _MISSING:
                try:
                    delattr(owner, attribute)
                except AttributeError:
                    pass
            else:
                setattr(owner, attribute, old)
