"""A compiled kernel that is there and launches nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SilentKernel:
    """What AsyncCompile gives for the source of a kernel: something that can be run and does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *_arguments: Any, **_options: Any) -> None:
        return None

    def __call__(self, *_arguments: Any, **_options: Any) -> None:
        return None

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        return self.run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.run
