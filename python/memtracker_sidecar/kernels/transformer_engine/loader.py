"""Brings TransformerEngine's Python package up over the stand-in of its compiled module.

The package is the user's: installed, or a source folder. It may be installed without its CUDA parts
(`pip install --no-deps transformer-engine`), which the library itself refuses to import; that check and the loading of its
shared objects are the only parts of it that do not run.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from memtracker_sidecar.kernels.extension import host
from memtracker_sidecar.kernels.transformer_engine import extension_module

#: Versions whose compiled interface the table was read from. Others run too: unknown calls are reported by name.
KNOWN_VERSIONS = ("2.17",)


class TransformerEngineMissing(RuntimeError):
    """No TransformerEngine Python package was found."""


@dataclass(frozen=True)
class Package:
    """Where the Python package lies, and its version."""

    folder: Path
    version: str

    @property
    def known(self) -> bool:
        return ".".join(self.version.split(".")[:2]) in KNOWN_VERSIONS


def find(source: str | None = None) -> Package | None:
    """The package in `source` (a folder that holds `transformer_engine/`), or the installed one."""
    if source:
        folder = Path(source)
        if not (folder / "transformer_engine" / "pytorch").is_dir():
            raise TransformerEngineMissing(f"{source} holds no transformer_engine/pytorch folder")
        return Package(folder, _source_version(folder))
    for entry in sys.path:
        folder = Path(entry or ".")
        if (folder / "transformer_engine" / "pytorch" / "__init__.py").is_file():
            return Package(folder, _installed_version() or _source_version(folder))
    return None


def _installed_version() -> str | None:
    for name in ("transformer-engine", "transformer_engine"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _source_version(folder: Path) -> str:
    for candidate in (folder / "build_tools" / "VERSION.txt", folder / "VERSION.txt"):
        if candidate.is_file():
            return candidate.read_text().strip()
    return "unknown"


class _CommonLoader(importlib.machinery.SourceFileLoader):
    """Loads `transformer_engine.common` and leaves its shared objects out."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.load_framework_extension = lambda framework: None  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "transformer_engine.common":
            file = self.folder / "transformer_engine" / "common" / "__init__.py"
            return importlib.util.spec_from_file_location(
                name,
                file,
                loader=_CommonLoader(name, str(file)),
                submodule_search_locations=[str(file.parent)],
            )
        if name == "transformer_engine.jax":
            raise ImportError("the JAX side of TransformerEngine is not used here")
        return None


def install(source: str | None = None) -> Package | None:
    """Makes `import transformer_engine` work. Returns None where there is no such package.

    Environment: NVTE_PROJECT_BUILDING tells the package not to look for its own shared objects.
    """
    package = find(source)
    if package is None:
        return None
    os.environ["NVTE_PROJECT_BUILDING"] = "1"
    os.environ.pop("NVTE_RELEASE_BUILD", None)
    if str(package.folder) not in sys.path:
        sys.path.insert(0, str(package.folder))
    sys.modules["transformer_engine_torch"] = extension_module()
    sys.meta_path.insert(0, _Finder(package.folder))
    if _installed_version() is None:
        _answer_version(re.compile(r"transformer[-_]engine(_torch)?"), package.version)
    return package


def _answer_version(names: re.Pattern[str], version: str) -> None:
    """`importlib.metadata.version` knows installed packages only; a source folder is answered for here."""
    original = importlib.metadata.version

    def answer(name: str) -> str:
        return version if names.fullmatch(name) else original(name)

    importlib.metadata.version = answer  # type: ignore[assignment]


def finish() -> None:
    """After `transformer_engine.pytorch` was imported: TE looks at the class of q, k and v to choose an attention backend.

    `get_attention_backend` turns cuDNN off for any class that is neither torch.Tensor nor a quantized tensor of TE's own, so
    fake tensors would change the choice (dot_product_attention/utils.py).
    """
    _dispatch_by_hand()
    _weak_references()
    _plain_types()
    _sign_mask()
    utils: Any = sys.modules.get("transformer_engine.pytorch.attention.dot_product_attention.utils")
    if utils is None or hasattr(utils.get_attention_backend, "__wrapped__"):
        return
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    original = utils.get_attention_backend

    @functools.wraps(original)
    def get_attention_backend(attention_params: Any) -> Any:
        if attention_params.qkv_type is FakeTensor:
            attention_params.qkv_type = torch.Tensor
        return original(attention_params)

    utils.get_attention_backend = get_attention_backend


def _weak_references() -> None:
    """`make_weak_ref` (pytorch/utils.py) wraps an address in a tensor that owns nothing; a fake one cannot be made of an address.

    The memory behind it belongs to a graph's pool and is counted where it was made; the reference has none of its own.
    """
    utils: Any = sys.modules.get("transformer_engine.pytorch.utils")
    original = getattr(utils, "make_weak_ref", None)
    if original is None:
        return
    import torch
    import torch.utils._pytree as pytree

    from memtracker_sidecar.fake_cuda import addresses

    def reference(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "cuda":
            return value
        made = host().view_of_external(list(value.shape), value.dtype)
        addresses.stand_at(made, value.data_ptr())
        return made

    def make_weak_ref(value: Any) -> Any:
        return pytree.tree_map(reference, value)

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("make_weak_ref") is original:
            module.make_weak_ref = make_weak_ref  # type: ignore[attr-defined]


def _plain_types() -> None:
    """Where TE compares `type(t)` with torch.Tensor (offloading, utils.py), a fake tensor stands for a plain one."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def type_of(value: Any) -> Any:
        if type(value) is FakeTensor:
            return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
        return type(value)

    for name in ("cpu_offload_v1", "cpu_offload", "utils"):
        module: Any = sys.modules.get(f"transformer_engine.pytorch.{name}")
        if module is not None:
            module.type = type_of


def _sign_mask() -> None:
    """The random signs of NVFP4's Hadamard transform become an integer of the host: a value, an argument of a kernel."""
    module: Any = sys.modules.get("transformer_engine.pytorch.tensor.nvfp4_tensor")
    if module is not None:
        module.get_sign_from_vector = lambda _vector: 0


def _dispatch_by_hand() -> None:
    """Quantized tensors call `__torch_dispatch__` of the buffers that they hold, with their own class among the types.

    A plain tensor runs the operator then; a fake one declines, because it does not know the class.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    method: Any = FakeTensor.__torch_dispatch__
    original = method.__func__
    if hasattr(original, "_memtracker_types"):
        return

    @functools.wraps(original)
    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types and not any(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **(kwargs or {}))
        return original(cls, func, types, args, kwargs)

    dispatch._memtracker_types = True  # type: ignore[attr-defined]
    FakeTensor.__torch_dispatch__ = classmethod(dispatch)  # type: ignore[assignment,method-assign]
