"""The worker process: `python -m memtracker_sidecar SPEC.json` traces one rank and exits.

Exit status: 0 done, 3 the specification, the environment or the checkout's interface is not as needed, 4 the training code
failed. The reason is an `error` event, and on stderr when there is no connection to send it over. SIGTERM ends the run with a
`close` event of status `interrupted`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from memtracker_sidecar import protocol
from memtracker_sidecar.adapter_api import Adapter, AdapterProblem, TrainingDone
from memtracker_sidecar.emitter import Emitter, EmitterError
from memtracker_sidecar.parent_watch import end_with_parent
from memtracker_sidecar.worker_spec import SpecError, WorkerSpec, load_worker_spec

DONE, PROBLEM, TRAINING_FAILED = 0, 3, 4
TORCH_VERSION = "2.14.1"


class Interrupted(BaseException):
    """SIGTERM or SIGINT arrived."""


def check_torch() -> str:
    """The version of torch; the private hooks used here were checked on exactly one.

    Raises:
        AdapterProblem: another version is installed, and MEMTRACKER_ALLOW_TORCH does not name it.
    """
    try:
        import torch
    except ImportError as error:
        raise AdapterProblem(
            f"torch cannot be imported: {error}. Run `memtracker setup`."
        ) from error
    version = torch.__version__.split("+")[0]
    if version not in (TORCH_VERSION, os.environ.get("MEMTRACKER_ALLOW_TORCH")):
        raise AdapterProblem(
            f"torch {torch.__version__} is installed and memtracker is made for {TORCH_VERSION}. Run `memtracker setup`, or set "
            f"MEMTRACKER_ALLOW_TORCH={version} to try this one."
        )
    return str(torch.__version__)


def load_adapter(folder: Path) -> Adapter:
    """The adapter in a folder.

    Raises:
        AdapterProblem: manifest.json or adapter.py is missing or broken.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterProblem(
            f"{folder} is not an adapter: manifest.json cannot be read ({error})"
        ) from error
    name = str(manifest.get("name", folder.name)).replace("-", "_")
    file = folder / "adapter.py"
    # A package, so that an adapter of several files can import its own with `from . import …` and shadows nobody's names.
    module_spec = importlib.util.spec_from_file_location(
        f"memtracker_adapter_{name}", file, submodule_search_locations=[str(folder)]
    )
    if module_spec is None or module_spec.loader is None or not file.exists():
        raise AdapterProblem(f"{folder} is not an adapter: it has no adapter.py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    sys.path.insert(0, str(folder))
    try:
        module_spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    adapter = getattr(module, "Adapter", None)
    if not isinstance(adapter, type) or not issubclass(adapter, Adapter) or adapter is Adapter:
        raise AdapterProblem(
            f"{file} defines no class Adapter derived from memtracker_sidecar.adapter_api.Adapter"
        )
    made: Adapter = adapter()
    return made


def _versions() -> protocol.Fields:
    import platform

    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_git": getattr(torch.version, "git_version", None),
        "cuda_build": torch.version.cuda,
    }


def trace(spec: WorkerSpec, emitter: Emitter) -> tuple[int, str, protocol.Fields]:
    """Runs one rank. Returns exit status, close status and totals."""
    run = None
    try:
        check_torch()
        adapter = load_adapter(spec.adapter)
        from memtracker_sidecar.call_site import add_own_folder

        add_own_folder(spec.adapter)
        detection = adapter.detect(spec.checkout)
        if not detection.matches:
            raise AdapterProblem(detection.reason)
        plan = adapter.plan(spec)
        os.environ.update(plan.environment)
        if not plan.environment.get("CUDA_VISIBLE_DEVICES"):
            os.environ["CUDA_VISIBLE_DEVICES"] = (
                ""  # a GPU that happens to be here must not be touched
            )
        sys.path[:0] = [str(path) for path in plan.python_path]

        from memtracker_sidecar.failure import error_event
        from memtracker_sidecar.run import Run

        run = Run(spec, emitter)
        os.environ.update(run.distributed.environment() | dict(plan.environment))
        os.chdir(spec.cwd)
        emitter.emit(protocol.run("versions", _versions()))
        emitter.emit(protocol.run("plan", {"framework_version": detection.version, **plan.facts}))
        conf = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        if conf:
            emitter.emit(protocol.allocator_settings(conf))
        context = run.context(plan)
        adapter.install(context)
        emitter.emit(protocol.run("replaced", run.replacements.reasons))
        try:
            adapter.run(context)
        except TrainingDone:
            pass
        return DONE, "done", run.counts()
    except Interrupted:
        _stop_interrupting()
        return TRAINING_FAILED, "interrupted", {} if run is None else run.counts()
    except EmitterError:
        raise
    except (AdapterProblem, SpecError) as error:
        emitter.emit(
            protocol.error(type(error).__name__, str(error), traceback.format_exc(), {}, True)
        )
        return PROBLEM, "failed", {} if run is None else run.counts()
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return DONE, "done", {} if run is None else run.counts()
        if run is None:
            emitter.emit(
                protocol.error(type(error).__name__, str(error), traceback.format_exc(), {}, True)
            )
            return PROBLEM, "failed", {}
        emitter.emit(error_event(error, run.recorder))
        return TRAINING_FAILED, "failed", run.counts()
    finally:
        if run is not None:
            run.finish()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    # An exception that is raised inside a finalizer is swallowed there, so it is raised again until it arrives.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    raise Interrupted


def _stop_interrupting() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)


def main(arguments: list[str]) -> int:
    """Runs the worker. Returns its exit status."""
    if len(arguments) != 1:
        print("usage: python -m memtracker_sidecar SPEC.json", file=sys.stderr)
        return PROBLEM
    end_with_parent()
    try:
        spec = load_worker_spec(Path(arguments[0]))
        emitter = Emitter(spec.endpoint, spec.run, curve=spec.curve)
    except (SpecError, EmitterError) as error:
        print(f"memtracker worker: {error}", file=sys.stderr)
        return PROBLEM

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _interrupt)
    try:
        status, word, counts = trace(spec, emitter)
        _stop_interrupting()
        emitter.close(word, counts)
    except EmitterError as error:
        print(f"memtracker worker: {error}", file=sys.stderr)
        return PROBLEM
    return status


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: destructors of a training job (process groups, threads, CUDA graphs) have nothing left to say.
    os._exit(code)
