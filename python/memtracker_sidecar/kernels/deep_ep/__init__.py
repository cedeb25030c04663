"""DeepEP and HybridEP, expert-parallel communication: the package needs CUDA to be built, so its Python classes stand here too.

`buffer.py` and `hybrid.py` hold one class of the package each; `arrivals.py` says how many rows come to this rank.
"""

from __future__ import annotations

from memtracker_sidecar.kernels.packages import installed, module

VERSION = "1.2.1"


def install() -> bool:
    """Puts `deep_ep` in place. Does nothing (and says so) where it is installed."""
    if installed("deep_ep"):
        return False
    from memtracker_sidecar.kernels.deep_ep import buffer, hybrid

    contents = {
        "Buffer": buffer.Buffer,
        "Config": buffer.Config,
        "EventHandle": buffer.EventHandle,
        "EventOverlap": buffer.EventOverlap,
        "HybridEPBuffer": hybrid.HybridEPBuffer,
        "__version__": VERSION,
    }
    module("deep_ep", contents)
    module(
        "deep_ep.utils",
        {"EventHandle": buffer.EventHandle, "EventOverlap": buffer.EventOverlap},
    )
    return True
