"""What is changed in a job's configuration for a trace, under whichever name a generation has for it.

Input and output are off, the number of steps is the trace's, and what is written goes to a folder that is thrown away.
Everything that decides what is on the device stays as the arguments have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memtracker_sidecar.adapter_api import InterfaceChanged
from memtracker_sidecar.replacements import Replacements

from .vision_batches import VisionLayout


@dataclass(frozen=True)
class Changes:
    """What a trace asks of a job."""

    steps: int
    folder: str
    """Where the job may write."""
    synthetic: bool
    """Whether batches are made here; otherwise the checkout reads its own data."""
    document_length: int | None
    """Tokens of a document in synthetic batches; None is the context's length."""
    tokenizer_files: bool
    """Whether the checkout's tokenizer is there."""
    vision: VisionLayout
    """Images of synthetic batches, for models that take them."""
    replacements: Replacements
    """For builders that are functions of the checkout."""


_STEPS = ("training.steps",)
_FOLDERS = ("job.dump_folder", "dump_folder")
_SAVING = ("checkpoint.enable", "checkpoint.enable_checkpoint")
_OFF = (
    "metrics.enable_tensorboard",
    "metrics.enable_wandb",
    "profiling.enable_profiling",
    "profiling.enable_memory_snapshot",
    "profiler.enable_profiling",
    "profiler.enable_memory_snapshot",
    "debug.enable_structured_logging",
)
_FLIGHT_RECORDER = ("comm.trace_buf_size",)


def _set(config: Any, names: tuple[str, ...], value: Any) -> bool:
    """Sets each of `names` that `config` has; whether it has any."""
    found = False
    for name in names:
        section, _, field = name.rpartition(".")
        holder = getattr(config, section, None) if section else config
        if hasattr(holder, field):
            setattr(holder, field, value)
            found = True
    return found


def apply(config: Any, changes: Changes) -> None:
    """Changes a parsed config in place.

    Raises:
        InterfaceChanged: it has no name for the number of steps, for where the job writes or for saving checkpoints.
    """
    for names, value in (
        (_STEPS, changes.steps),
        (_FOLDERS, changes.folder),
        (_SAVING, False),
    ):
        if not _set(config, names, value):
            raise InterfaceChanged(
                f"the configuration of this checkout has none of {', '.join(names)}"
            )
    _set(config, _OFF, False)
    _set(config, _FLIGHT_RECORDER, 0)
