"""Starts a capture inside a process of the job, and ends it however the process ends."""

from __future__ import annotations

import atexit
import importlib.util
import os
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

import memtracker_sidecar
from memtracker_sidecar.capture.import_hooks import ImportHooks
from memtracker_sidecar.capture.recording import Recording, error_text
from memtracker_sidecar.capture.settings import (
    CaptureSettings,
    parse_settings,
    place_of,
)


def start(settings_text: str) -> None:
    """Waits for torch. Called by sitecustomize in every Python process of the job.

    Raises:
        SettingsError: the settings do not read.
    """
    settings = parse_settings(settings_text)
    hooks = ImportHooks()
    hooks.install()
    hooks.on_module("torch", lambda torch: _Capture(torch, settings, hooks).prepare())


class _Capture:
    """The capture of one process: prepared when torch is imported, recording from the first use of CUDA on."""

    def __init__(self, torch: Any, settings: CaptureSettings, hooks: ImportHooks) -> None:
        self._torch = torch
        self._settings = settings
        self._recording = Recording(torch, settings, place_of())
        # Imported here: it needs torch, which is there now.
        from memtracker_sidecar.capture.context import CaptureContext

        self._context = CaptureContext(torch, self._recording, hooks)
        self._begun = False
        self._error: str | None = None

    def prepare(self) -> None:
        memtracker_sidecar.set_phase_marker(self._context.phases.phase)
        self._label()
        self._torch.cuda._lazy_call(self._begin)

    def _label(self) -> None:
        try:
            self._context.prepare()
            _adapter_install(self._settings)(self._context)
        except Exception as problem:  # noqa: BLE001 - a run without labels is better than none
            text = f"phases of {self._settings.framework} are not labelled: {error_text(problem)}"
            self._recording.facts["labels"] = text
            sys.stderr.write(f"memtracker: {text}\n")

    def _begin(self) -> None:
        """CUDA is initialized: this is a process that trains."""
        if self._begun:
            return
        self._begun = True
        try:
            self._recording.start()
        except (RuntimeError, TypeError, AttributeError) as problem:
            sys.stderr.write(f"memtracker: no history is recorded: {error_text(problem)}\n")
            return
        atexit.register(self._at_exit)
        previous = sys.excepthook

        def excepthook(
            kind: type[BaseException],
            value: BaseException,
            trace: types.TracebackType | None,
        ) -> None:
            self._error = error_text(value)
            self._finish(
                "out_of_memory" if kind.__name__ == "OutOfMemoryError" else "exception",
                self._error,
            )
            previous(kind, value, trace)

        sys.excepthook = excepthook
        if threading.current_thread() is threading.main_thread():
            self._on_termination()

    def _on_termination(self) -> None:
        """A launcher ends the other ranks with SIGTERM when one fails."""
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def terminated(number: int, _frame: types.FrameType | None) -> None:
            self._finish("terminated", f"signal {number}")
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        signal.signal(signal.SIGTERM, terminated)

    def _at_exit(self) -> None:
        if self._error is None:
            self._finish("done", "")

    def _finish(self, how: str, error: str) -> None:
        try:
            if how == "done":
                self._context.phases.end_all()
            self._recording.finish(how, error)
        except Exception as problem:  # noqa: BLE001 - the job's own end must not be hidden
            sys.stderr.write(f"memtracker: the recording is not written: {error_text(problem)}\n")


def _adapter_install(settings: CaptureSettings) -> Any:
    """`install` of the adapter's capture.py, imported as part of a package so that it can use the adapter's own tables."""
    folder = Path(settings.adapter)
    package = f"memtracker_adapter_{folder.name}"
    if package not in sys.modules:
        module = types.ModuleType(package)
        module.__path__ = [str(folder)]
        sys.modules[package] = module
    spec = importlib.util.spec_from_file_location(f"{package}.capture", folder / "capture.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{folder} has no capture.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.install
