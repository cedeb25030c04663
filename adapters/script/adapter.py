"""Traces any PyTorch training script: `-- train.py --its --arguments`.

Nothing in the script has to change. A step begins with the first forward of a model after the last optimizer step; inside it,
`forward`, `backward` and `optimizer` are marked where models are called, `backward()` runs and optimizers step. A script that
uses torch.distributed gets a process group of the asked world; one that does not runs as it is. The script ends when the asked
number of optimizer steps is complete, or by itself.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import memtracker_sidecar
from memtracker_sidecar.adapter_api import Adapter as BaseAdapter
from memtracker_sidecar.adapter_api import (
    AdapterContext,
    AdapterProblem,
    Detection,
    Plan,
    TrainingDone,
)
from memtracker_sidecar.worker_spec import WorkerSpec


class Adapter(BaseAdapter):
    """A plain script."""

    def detect(self, checkout: Path | None) -> Detection:
        return Detection(matches=True, reason="any Python file can be a training script")

    def plan(self, spec: WorkerSpec) -> Plan:
        if not spec.argv:
            raise AdapterProblem(
                "no script was named; write it after `--`: -- train.py --its --arguments"
            )
        if spec.argv[0] == "-m":
            if len(spec.argv) < 2:
                raise AdapterProblem("-m needs the name of a module")
            return Plan(argv=spec.argv, python_path=(spec.cwd,), facts={"script": spec.argv[1]})
        script = (spec.cwd / spec.argv[0]).resolve()
        if not script.is_file():
            raise AdapterProblem(f"there is no script {script}")
        return Plan(
            argv=(str(script), *spec.argv[1:]),
            python_path=(script.parent,),
            facts={"script": os.path.relpath(script, spec.cwd)},
        )

    def install(self, context: AdapterContext) -> None:
        StepMarks(context).install()
        _real_data(context)
        _no_files(context)
        memtracker_sidecar.set_phase_marker(context.phases.phase)

    def run(self, context: AdapterContext) -> None:
        arguments = context.plan.argv
        context.progress("the script starts")
        try:
            with context.recording():
                if arguments[0] == "-m":
                    sys.argv = list(arguments[1:])
                    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
                else:
                    sys.argv = list(arguments)
                    runpy.run_path(arguments[0], run_name="__main__")
        finally:
            memtracker_sidecar.set_phase_marker(None)
        if context.steps_done == 0:
            context.uncovered(
                "feature", "optimizer step", detail="the script ended before an optimizer stepped"
            )


class StepMarks:
    """Finds steps, forwards, backwards and optimizer steps in a script that says nothing about them."""

    def __init__(self, context: AdapterContext) -> None:
        self._context = context
        self._phases = context.phases
        self._init: int | None = None
        self._step: int | None = None
        self._number = 0
        self._micro_batch = 0
        self._stepped = False
        self._open: list[int] = []

    def install(self) -> None:
        context = self._context
        context.backward.listeners.append(self._backward)
        context.owners.on_optimizer_step.append(self._optimizer)
        self._init = self._phases.begin("init")

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def call(module: Any, *arguments: Any, **options: Any) -> Any:
                if context.modules.stack_depth or context.modules.in_backward() or _compiling():
                    return original(module, *arguments, **options)
                return self._forward(original, module, arguments, options)

            return call

        context.replace(
            "torch.nn",
            "Module.__call__",
            wrap,
            "a model called from outside of any module is a forward",
        )

    def _forward(
        self, original: Callable[..., Any], module: Any, arguments: Any, options: Any
    ) -> Any:
        import torch

        training = torch.is_grad_enabled() and any(
            parameter.requires_grad for parameter in module.parameters()
        )
        if not training:
            return original(module, *arguments, **options)
        self._begin_step_if_needed()
        self._context.register_model(module)
        with self._phases.micro_batch("forward", self._micro_batch):
            result = original(module, *arguments, **options)
        return result

    def _begin_step_if_needed(self) -> None:
        if self._step is not None and self._stepped:
            self._phases.end(self._step)
            self._step = None
            self._context.step_done()
        if self._step is None:
            if self._init is not None:
                self._phases.end(self._init)
                self._init = None
            self._number += 1
            self._micro_batch = 0
            self._stepped = False
            self._step = self._phases.begin("step", step=self._number)

    def _backward(self, begins: bool) -> None:
        if begins:
            self._open.append(self._phases.begin("backward", micro_batch=self._micro_batch))
        elif self._open:
            self._phases.end(self._open.pop())
            self._micro_batch += 1

    def _optimizer(self, optimizer: Any, begins: bool) -> None:
        if begins:
            if self._step is None:
                self._begin_step_if_needed()
            self._open.append(self._phases.begin("optimizer"))
        elif self._open:
            self._phases.end(self._open.pop())
            self._stepped = True


def _compiling() -> bool:
    import torch

    return bool(torch.compiler.is_compiling())


def _real_data(context: AdapterContext) -> None:
    """Datasets, samplers and collation work on real CPU tensors: they read values and convert from numpy."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    loader = context.require("torch.utils.data", "DataLoader")
    keep_workers = bool(context.option("data_workers", 0))
    initialise = loader.__init__

    @functools.wraps(initialise)
    def without_workers(self: Any, *arguments: Any, **options: Any) -> None:
        if not keep_workers and options.get("num_workers"):
            for name in (
                "num_workers",
                "prefetch_factor",
                "persistent_workers",
                "multiprocessing_context",
            ):
                options.pop(name, None)
            context.log(
                "DataLoader workers are not started; batches are made in the traced process"
            )
        options.pop("pin_memory", None)
        with _disable_current_modes():
            initialise(self, *arguments, **options)

    context.replacements.set(
        loader, "__init__", without_workers, "worker processes would inherit the trace"
    )
    base = context.require("torch.utils.data.dataloader", "_BaseDataLoaderIter")
    for owner, name in ((base, "__init__"), (base, "__next__"), (loader, "__iter__")):
        original = getattr(owner, name)

        def outside(*arguments: Any, _original: Any = original, **options: Any) -> Any:
            with _disable_current_modes(), unset_fake_temporarily():
                return _original(*arguments, **options)

        context.replacements.set(
            owner, name, functools.wraps(original)(outside), "data is made of real CPU tensors"
        )


def _no_files(context: AdapterContext) -> None:
    """Checkpoints are not written: fake tensors have no values."""

    def save(*_arguments: Any, **_options: Any) -> None:
        context.uncovered(
            "feature", "torch.save", assumption="writing a checkpoint allocates nothing on the GPU"
        )

    context.replacements.set(
        context.require("torch"), "save", save, "fake tensors have no values to write"
    )


__all__ = ["Adapter", "TrainingDone"]
