"""What a worker process is told to do: the Python twin of src/protocol/worker_spec.ts.

The orchestrator writes one JSON file into the run's private folder and starts `python -m memtracker_sidecar FILE`.
Everything is validated here, once, so that the rest of the package can trust it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OptionValue = str | int | float | bool


class SpecError(ValueError):
    """The worker specification is not what the protocol says. The message names the field."""


@dataclass(frozen=True)
class CurveKeys:
    """Z85 keys of ZeroMQ's CURVE mechanism, used when the endpoint is loopback TCP."""

    server_public: str
    public: str
    secret: str


@dataclass(frozen=True)
class GpuProperties:
    """The pretended GPU, named as `torch.cuda.get_device_properties` names it. Memory in bytes."""

    name: str
    capability: tuple[int, int]
    total_memory: int
    multi_processor_count: int


@dataclass(frozen=True)
class WorkerSpec:
    """One rank of one job."""

    endpoint: str
    run: str
    adapter: Path
    checkout: Path | None
    argv: tuple[str, ...]
    cwd: Path
    world: int
    rank: int
    gpus_per_node: int
    gpu: GpuProperties
    steps: int
    stack_depth: int
    curve: CurveKeys | None = None
    options: Mapping[str, OptionValue] = field(default_factory=dict)

    @property
    def local_rank(self) -> int:
        """Index of this rank's GPU on its node, as torchrun sets LOCAL_RANK."""
        return self.rank % self.gpus_per_node


def _take(source: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    if name not in source:
        raise SpecError(f"the worker specification has no `{name}`")
    value = source[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise SpecError(f"`{name}` of the worker specification is {value!r}")
    return value


def _positive(source: Mapping[str, Any], name: str, least: int = 1) -> int:
    value = _take(source, name, int)
    if value < least:
        raise SpecError(
            f"`{name}` of the worker specification is {value}, at least {least} is needed"
        )
    return int(value)


def parse_worker_spec(source: Mapping[str, Any]) -> WorkerSpec:
    """Checks a decoded specification.

    Raises:
        SpecError: a field is missing, of the wrong type or out of range.
    """
    gpu = _take(source, "gpu", dict)
    capability = _take(gpu, "capability", list)
    if len(capability) != 2 or not all(isinstance(part, int) for part in capability):
        raise SpecError(f"`gpu.capability` of the worker specification is {capability!r}")
    keys = source.get("curve")
    checkout = source.get("checkout")
    argv = _take(source, "argv", list)
    if not all(isinstance(argument, str) for argument in argv):
        raise SpecError("`argv` of the worker specification is not a list of strings")
    spec = WorkerSpec(
        endpoint=_take(source, "endpoint", str),
        run=_take(source, "run", str),
        adapter=Path(_take(source, "adapter", str)),
        checkout=None if checkout is None else Path(checkout),
        argv=tuple(argv),
        cwd=Path(_take(source, "cwd", str)),
        world=_positive(source, "world"),
        rank=_positive(source, "rank", 0),
        gpus_per_node=_positive(source, "gpus_per_node"),
        gpu=GpuProperties(
            name=_take(gpu, "name", str),
            capability=(capability[0], capability[1]),
            total_memory=_positive(gpu, "total_memory"),
            multi_processor_count=_positive(gpu, "multi_processor_count"),
        ),
        steps=_positive(source, "steps"),
        stack_depth=_positive(source, "stack_depth", 0),
        curve=None
        if keys is None
        else CurveKeys(
            server_public=_take(keys, "server_public", str),
            public=_take(keys, "public", str),
            secret=_take(keys, "secret", str),
        ),
        options=dict(source.get("options") or {}),
    )
    if spec.rank >= spec.world:
        raise SpecError(f"rank {spec.rank} is not in a world of {spec.world}")
    return spec


def load_worker_spec(path: Path) -> WorkerSpec:
    """Reads the file that the orchestrator wrote.

    Raises:
        SpecError: the file cannot be read, is not JSON, or is not a specification.
    """
    try:
        source = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the worker specification {path}: {error}") from error
    if not isinstance(source, dict):
        raise SpecError(f"the worker specification {path} is not a JSON object")
    return parse_worker_spec(source)
