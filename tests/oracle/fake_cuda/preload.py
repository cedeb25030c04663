"""Starts the running script again over the fake CUDA, with devices of a chosen size."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field

from fake_cuda.build import Libraries, build

_STARTED = "FAKECUDA_STARTED"


@dataclass(frozen=True)
class FakeDevices:
    """What the fake CUDA shows. Sizes are bytes."""

    capacity: int
    devices: int = 1
    context: int = 0
    """In use on each device from the start."""
    events: str = "auto"
    """`auto`: an event is complete when it is recorded; `manual`: when its stream is said to have come that far."""
    free_synchronizes: bool = False

    def environment(self) -> dict[str, str]:
        """The variables that state.cpp reads."""
        return {
            "FAKECUDA_BYTES": str(self.capacity),
            "FAKECUDA_DEVICES": str(self.devices),
            "FAKECUDA_CTX_BYTES": str(self.context),
            "FAKECUDA_EVENTS": self.events,
            "FAKECUDA_FREE_SYNCS": str(int(self.free_synchronizes)),
        }


@dataclass(frozen=True)
class Preload:
    """How a process is started over the fake."""

    libraries: Libraries = field(default_factory=build)
    with_cublas: bool = False

    def environment(self) -> dict[str, str]:
        """LD_PRELOAD and LD_LIBRARY_PATH."""
        preloaded = [self.libraries.runtime, *([self.libraries.cublas] if self.with_cublas else [])]
        inherited = os.environ.get("LD_LIBRARY_PATH")
        folders = [str(self.libraries.folder), *([inherited] if inherited else [])]
        return {"LD_PRELOAD": ":".join(map(str, preloaded)), "LD_LIBRARY_PATH": ":".join(folders)}


def is_started() -> bool:
    """Whether this process runs over the fake."""
    return os.environ.get(_STARTED) == "1"


def start_again(preload: Preload, variables: dict[str, str] | None = None) -> None:
    """Replaces this process by the same script over the fake; returns at once when it runs over it already."""
    if is_started():
        return
    environment = {**os.environ, **(variables or {}), **preload.environment(), _STARTED: "1"}
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
