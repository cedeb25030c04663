"""Labels a plain training script on a real GPU: the same steps, forwards, backwards and optimizer steps as a trace of it."""

from __future__ import annotations

from memtracker_sidecar.capture.context import CaptureContext

from .adapter import StepMarks


def install(context: CaptureContext) -> None:
    """Marks are found in torch itself; the script need not have been imported."""
    StepMarks(context).install()
