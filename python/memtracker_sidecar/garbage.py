"""CPython's cyclic collector, as in the real job, and visible in the trace.

A reference cycle around a tensor keeps its memory until a collection of its generation, so collection points are part of the
peak. The collector is left as the job has it (frameworks switch it off and collect every N steps); only what the
recorder adds (interned tables, torch's own import) is frozen before the run, so that it neither triggers nor slows collections.
"""

from __future__ import annotations

import gc
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink


class GarbageReports:
    """Reports collections as events while it is on."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    def install(self) -> None:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._collected)

    def remove(self) -> None:
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)
        gc.unfreeze()

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and (info["collected"] or info["generation"] == 2):
            self._sink.emit((protocol.GARBAGE_COLLECTION, info["generation"], info["collected"]))
