"""Megatron-LM: an unchanged checkout, its own script and argument line, one rank of any world, no GPU.

One file a concern: `interface` (names that have to be there), `arguments` (what is switched off), `batches` (data without a
dataset), `phases` (labels and owners), `routing` (mixture of experts), `vision` (images among text), `behaviour` (answers to
questions about values).
Kernel libraries are in `memtracker_sidecar.kernels`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import typing
from pathlib import Path
from typing import Any

from memtracker_sidecar import kernels
from memtracker_sidecar.adapter_api import Adapter as AdapterInterface
from memtracker_sidecar.adapter_api import (
    AdapterContext,
    AdapterProblem,
    ArgumentsRefused,
    Detection,
    NotThisFramework,
    Plan,
)
from memtracker_sidecar.worker_spec import WorkerSpec

from . import arguments, batches, behaviour, interface, phases, rank_layout, routing, vision

DEFAULT_SCRIPT = "pretrain_gpt.py"

_REFUSALS = (AssertionError, ValueError, NotImplementedError, RuntimeError)
"""What Megatron's checks of its arguments raise."""


def version_of(checkout: Path) -> str:
    """megatron/core/package_info.py, without importing it."""
    file = checkout / "megatron" / "core" / "package_info.py"
    if not file.is_file():
        return ""
    text = file.read_text(encoding="utf-8")
    parts = [
        re.search(rf"^{name} *= *(.+)$", text, re.MULTILINE)
        for name in ("MAJOR", "MINOR", "PATCH", "PRE_RELEASE")
    ]
    numbers = [part.group(1).split("#")[0].strip().strip("'\"") for part in parts if part]
    return ".".join(numbers[:3]) + ("".join(numbers[3:4]) if len(numbers) > 3 else "")


class Adapter(AdapterInterface):
    def __init__(self) -> None:
        self._script = DEFAULT_SCRIPT

    def detect(self, checkout: Path | None) -> Detection:
        if checkout is None:
            return Detection(False, "Megatron-LM needs the folder of a checkout")
        for mark in ("megatron/core/__init__.py", "megatron/training/training.py"):
            if not (checkout / mark).is_file():
                return Detection(
                    False,
                    f"{checkout} has no {mark}: it is not a Megatron-LM checkout of 2024 or later",
                )
        return Detection(True, "megatron/training/training.py", version_of(checkout))

    def plan(self, spec: WorkerSpec) -> Plan:
        checkout = spec.checkout
        detection = self.detect(checkout)
        if checkout is None or not detection.matches:
            raise NotThisFramework(detection.reason)
        argv = list(spec.argv)
        self._script = argv.pop(0) if argv and argv[0].endswith(".py") else DEFAULT_SCRIPT
        script = checkout / self._script
        if not script.is_file():
            raise AdapterProblem(f"{checkout} has no {self._script}")
        return Plan(
            argv=(str(script), *argv),
            environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if _wants_one_connection(argv) else {},
            python_path=(checkout, script.parent),
            facts={"script": self._script, "version": detection.version, "checkout": str(checkout)},
        )

    def install(self, context: AdapterContext) -> None:
        if not hasattr(typing, "override"):  # Python 3.11; Megatron of 2026 imports it from typing
            import typing_extensions

            context.replacements.set(
                typing, "override", typing_extensions.override, "new in Python 3.12"
            )
        facts = kernels.install(
            context, str(context.spec.options.get("transformer_engine", "")) or None
        )
        with contextlib.redirect_stdout(io.StringIO()):
            for need in interface.REQUIRED:
                context.require(need.module, need.attribute, why=need.purpose)
        kernels.finish()
        context.facts("kernels", facts)
        _same_checkout(context)
        arguments.install(context)
        rank_layout.install(context)
        batches.install(context, self._script)
        behaviour.install(context)
        routing.install(context)
        vision.install(context, self._script)
        phases.install(context, lambda model, optimizer: _register(context, model, optimizer))

    def run(self, context: AdapterContext) -> None:
        before = sys.argv
        sys.argv = list(context.plan.argv)
        told = io.StringIO()
        try:
            with contextlib.redirect_stderr(_Tee(sys.stderr, told)), context.recording():
                runpy.run_path(context.plan.argv[0], run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise ArgumentsRefused(
                    _last_words(told.getvalue()) or f"{self._script} ended with status {error.code}"
                ) from error
        except AdapterProblem:
            raise
        except _REFUSALS as error:
            if not context.steps_done and _in_validation(error):
                raise ArgumentsRefused(
                    str(error) or "an assertion of validate_args failed"
                ) from error
            raise
        finally:
            sys.argv = before


class _Tee(io.TextIOBase):
    """Passes text on and keeps it: argparse explains itself on stderr before it exits."""

    def __init__(self, stream: Any, kept: io.StringIO) -> None:
        self.stream, self.kept = stream, kept

    def write(self, text: str) -> int:
        self.kept.write(text)
        return int(self.stream.write(text) or 0)

    def flush(self) -> None:
        self.stream.flush()


def _last_words(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if "error:" in line]
    return lines[-1] if lines else text.strip()[-500:]


def _in_validation(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_name in (
            "validate_args",
            "parse_and_validate_args",
            "core_transformer_config_from_args",
        ):
            return True
        trace = trace.tb_next
    return False


def _wants_one_connection(argv: list[str]) -> bool:
    """Launch scripts set CUDA_DEVICE_MAX_CONNECTIONS=1, which tensor parallelism on older GPUs needs and FSDP refuses."""
    sharded = {"--use-megatron-fsdp", "--use-torch-fsdp2"} & set(argv)
    return "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ and not sharded


def _same_checkout(context: AdapterContext) -> None:
    package = context.require("megatron.core")
    found = Path(package.__file__).resolve().parent
    wanted = (Path(str(context.spec.checkout)) / "megatron" / "core").resolve()
    if found != wanted:
        raise AdapterProblem(
            f"`import megatron.core` finds {found}, not the checkout {wanted}; remove the other one"
        )


def _register(context: AdapterContext, model: Any, optimizer: Any) -> None:
    for index, chunk in enumerate(model):
        context.register_model(chunk, "" if len(model) == 1 else f"chunk{index}")
    if optimizer is not None:
        phases.claim_buffers(context, model, optimizer)
