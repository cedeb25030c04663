"""Reports of what the model does not know, or had to assume: once for each call site."""

from __future__ import annotations

import sys

from memtracker_sidecar import protocol
from memtracker_sidecar.call_site import call_site
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.modules import ModuleTracker
from memtracker_sidecar.tables import Tables


class UncoveredReports:
    """The reports of one process."""

    def __init__(self, sink: EventSink, tables: Tables, modules: ModuleTracker) -> None:
        self._sink = sink
        self._tables = tables
        self._modules = modules
        self._seen: set[tuple[str, str, str, str]] = set()
        self.count = 0

    def __call__(
        self,
        kind: str,
        name: str,
        *,
        detail: str = "",
        assumption: str = "",
        bytes: int = -1,
        once_for: str | None = None,
    ) -> None:
        """Reports once for each call site (the innermost line outside of PyTorch), or once for each `once_for`."""
        frame = sys._getframe(1)
        site = call_site(frame)
        key = (kind, name, assumption, site if once_for is None else once_for)
        if key in self._seen:
            return
        self._seen.add(key)
        self.count += 1
        module, _ = self._modules.position()
        text = f"{detail} at {site}" if detail and site else detail or site
        self._sink.emit(
            protocol.uncovered(
                kind, name, text, assumption, self._tables.stack(frame), module, bytes
            )
        )
