"""What a capture was asked for: the Python twin of `captureSettingsSchema` in src/measured/capture/settings.ts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass


class SettingsError(ValueError):
    """The settings are not what `memtracker capture` writes."""


@dataclass(frozen=True)
class CaptureSettings:
    """Settings of one capture, the same for every rank."""

    out: str
    """Folder of the files, one a rank."""
    framework: str
    adapter: str
    """Folder of the adapter; its capture.py labels the phases."""
    memtracker: str
    """Version of the program."""
    max_entries: int
    """Entries that the history may hold; 0: all."""
    stacks: str
    """`python`, or `all` for C++ frames as well (slow)."""
    synchronize: bool
    """Wait for the device at each phase boundary."""
    empty_cache: bool
    """Empty the cache at each phase boundary."""
    reset_peak: bool
    """Reset the peak counters at each phase boundary."""
    purpose: str
    """`calibration` or `validation`: a run is used for one of them."""


def parse_settings(text: str) -> CaptureSettings:
    """Reads the environment variable.

    Raises:
        SettingsError: a field is missing or of another type.
    """
    try:
        raw = json.loads(text)
        return CaptureSettings(**{name: raw[name] for name in CaptureSettings.__dataclass_fields__})
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"the capture settings do not read: {error}") from error


@dataclass(frozen=True)
class Place:
    """Where this process stands in the job, as its launcher says."""

    rank: int
    world: int
    local_rank: int
    gpus_per_node: int


_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK = (
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
)
_LOCAL_WORLD = (
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)


def place_of(environment: Mapping[str, str] = os.environ) -> Place:
    """The place that torchrun, srun or mpirun set; a single process when none did."""

    def first(names: tuple[str, ...], fallback: int) -> int:
        for name in names:
            if environment.get(name, "").isdigit():
                return int(environment[name])
        return fallback

    world = first(_WORLD, 1)
    return Place(first(_RANK, 0), world, first(_LOCAL_RANK, 0), first(_LOCAL_WORLD, world))


_ALLOWED = (
    "NCCL_",
    "TORCH_NCCL_",
    "PYTORCH_",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
)


def memory_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that change memory; nothing else of the environment is kept."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(_ALLOWED)}
