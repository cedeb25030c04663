"""`transformer_engine_torch`, the compiled module under TransformerEngine's Python package, as allocations without kernels.

One file a concern, as in the library's own `csrc/extensions`. :func:`extension_module` is the module;
`loader.py` brings the real Python package up on top of it.
"""

from __future__ import annotations

from memtracker_sidecar.kernels.extension import ExtensionModule
from memtracker_sidecar.kernels.transformer_engine import (  # noqa: F401 (each file registers its functions)
    activations,
    attention,
    comm,
    gemm,
    norms,
    optimizers,
    permutation,
    quantizers,
    rope,
    router,
    softmax,
    versions,
)
from memtracker_sidecar.kernels.transformer_engine.enums import CONSTANTS
from memtracker_sidecar.kernels.transformer_engine.table import TABLE

__all__ = ["TABLE", "extension_module"]


def extension_module() -> ExtensionModule:
    module = ExtensionModule("transformer_engine_torch", TABLE, **CONSTANTS, **comm.CLASSES)
    inner = ExtensionModule("transformer_engine_torch.grouped_mlp_experimental")
    module.__dict__["grouped_mlp_experimental"] = inner
    return module
