"""Kernel libraries without their kernels: the compiled modules under real Python packages, allocation by allocation.

`extension.py` is the seam. A folder or file a library: `transformer_engine/`, `apex.py`, `flash_attention.py`, ... ;
What PyTorch's own CUDA kernels allocate inside is `memtracker_sidecar.workspaces`. :func:`install` puts the stand-ins in place before a
framework is imported; packages that are installed keep their own Python code. Triton kernels need no stand-in: their launches
are no-ops (`memtracker_sidecar.triton_launch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memtracker_sidecar.kernels.extension import (
    DetachedHost,
    ExtensionModule,
    KernelHost,
    KernelTable,
    attach,
)

if TYPE_CHECKING:
    from memtracker_sidecar.adapter_api import AdapterContext

__all__ = [
    "DetachedHost",
    "ExtensionModule",
    "KernelHost",
    "KernelTable",
    "attach",
    "finish",
    "install",
]


def install(context: AdapterContext, transformer_engine: str | None = None) -> dict[str, str]:
    """Puts every library's stand-in in place. Returns what was found, for the run's facts.

    `transformer_engine`: a folder that holds TransformerEngine's Python package; default: the installed one.
    """
    from memtracker_sidecar.kernels import apex, deep_ep, flash_attention, mamba
    from memtracker_sidecar.kernels.recording import RecordingHost
    from memtracker_sidecar.kernels.transformer_engine import loader

    attach(RecordingHost(context))
    facts: dict[str, str] = {}
    # First: TransformerEngine looks for flash-attention when it is imported.
    facts["flash_attn"] = (
        f"stand-in {flash_attention.VERSION}" if flash_attention.install() else "installed"
    )
    facts["apex"] = "stand-in" if apex.install() else "installed"
    facts["deep_ep"] = f"stand-in {deep_ep.VERSION}" if deep_ep.install() else "installed"
    facts.update(mamba.install(context.rules))
    package = loader.install(transformer_engine)
    if package is None:
        facts["transformer_engine"] = "not found"
    else:
        facts["transformer_engine"] = package.version
        if not package.known:
            context.uncovered(
                "feature",
                "transformer_engine",
                detail=f"version {package.version}; the compiled module was read at {', '.join(loader.KNOWN_VERSIONS)}",
                assumption="calls that both versions have allocate the same",
            )
    return facts


def finish() -> None:
    """After the framework was imported."""
    from memtracker_sidecar.kernels.transformer_engine import loader

    loader.finish()
