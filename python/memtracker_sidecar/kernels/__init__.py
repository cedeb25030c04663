"""Kernel libraries without their kernels: the compiled modules under real Python packages, allocation by allocation.

`extension.py` is the seam. A folder or file a library: `transformer_engine/`, `apex.py`, `flash_attention.py`, ... ;
`triton.py` makes every Triton launch a no-op; `aten.py` is the table of what PyTorch's own CUDA kernels allocate inside.
:func:`install` puts the stand-ins in place before a framework is imported.
"""

from __future__ import annotations

from memtracker_sidecar.kernels.extension import (
    DetachedHost,
    ExtensionModule,
    KernelHost,
    KernelTable,
    attach,
)

__all__ = ["DetachedHost", "ExtensionModule", "KernelHost", "KernelTable", "attach"]
