"""Makes PyTorch's C++ core accept CUDA tensors on a machine without a GPU or without a CUDA build.

Two objects inside libtorch stand in the way, and both are replaced through ctypes, without a compiler:

1. The device guard of CUDA. The autograd engine asks it for the current device and stream. PyTorch has a fake one
   (`c10/core/impl/FakeGuardImpl.h`, eight devices) and installs it from `torch._C._ensureCUDADeviceGuardSet()`, but only
   over a guard that reports no devices. A CUDA build without a GPU has such a guard. A CPU build has none, so the slot is
   first pointed at the guard of another backend that reports no devices (Lazy, when none is registered by the user).
2. The CUDA hooks. `GraphTask::stash_current_streams` calls `hasPrimaryContext(device)`, which asserts that a GPU is there;
   on a CPU build `hasCUDA`/`isAvailable` say no and "Cannot access accelerator device" follows. The object's virtual table
   is copied and three entries are replaced. Their positions are computed from the headers that ship in the wheel
   (`torch/include/ATen/detail`), so a build that moved them is noticed instead of crashing.

Everything is undone at exit: static destructors of libtorch run after the Python callbacks are gone.
"""

from __future__ import annotations

import atexit
import ctypes
import re
from pathlib import Path
from typing import Any

import torch

_CUDA = 1  # c10/core/DeviceType.h
_LAZY = 17
_DEVICE_TYPES = 22
MAX_DEVICES = 8
"""Devices of FakeGuardImpl (`kFakeGuardImplMaxDevices`)."""

_kept: list[Any] = []


class FakeCudaUnavailable(RuntimeError):
    """This build of PyTorch is not laid out as expected. The message says what differs."""


def is_cuda_build() -> bool:
    """Whether this wheel was compiled with CUDA (says nothing about a GPU)."""
    return torch.version.cuda is not None


def _without_comments(source: str) -> str:
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    source = re.sub(r"//[^\n]*", "", source)
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))


def _body_of(source: str, name: str, file: Path) -> str:
    match = re.search(rf"(?:struct|class)\s+(?:[A-Z_]+\s+)?{name}\b[^;{{]*\{{", source)
    if match is None:
        raise FakeCudaUnavailable(f"{file} does not define {name}")
    start = end = match.end()
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(source[end], 0)
        end += 1
    return source[start : end - 1]


def _declarations(body: str) -> list[tuple[str, bool, bool]]:
    """(method, is virtual, is override) of each member function, in order."""
    pieces: list[str] = []
    depth, piece = 0, ""
    for character in body:
        if character == "{":
            if depth == 0:
                pieces.append(piece)
                piece = ""
            depth += 1
        elif character == "}":
            depth -= 1
        elif depth == 0:
            if character == ";":
                pieces.append(piece)
                piece = ""
            else:
                piece += character
    found = []
    for text in pieces:
        text = re.sub(r"\[\[[^\]]*\]\]", "", text)
        match = re.search(r"([~\w]+)\s*\(", text)
        if match is not None:
            found.append(
                (
                    match.group(1),
                    re.search(r"\bvirtual\b", text) is not None,
                    re.search(r"\boverride\b", text) is not None,
                )
            )
    return found


def hook_slots(include: Path | None = None) -> dict[str, int]:
    """Positions in the virtual table of at::CUDAHooksInterface, by method name (Itanium C++ ABI).

    Raises:
        FakeCudaUnavailable: the headers are missing or changed beyond recognition.
    """
    folder = (include or Path(torch.__file__).parent / "include") / "ATen" / "detail"
    names: list[str] = []
    for file, name in (
        ("AcceleratorHooksInterface.h", "AcceleratorHooksInterface"),
        ("CUDAHooksInterface.h", "CUDAHooksInterface"),
    ):
        path = folder / file
        try:
            source = _without_comments(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise FakeCudaUnavailable(
                f"the header {path} does not ship with this PyTorch: {error}"
            ) from error
        for method, virtual, override in _declarations(_body_of(source, name, path)):
            if not virtual or override or method in names:
                continue
            if method.startswith("~"):
                if (
                    not names
                ):  # a virtual destructor takes two entries, once for the whole hierarchy
                    names += [method, method + " (deleting)"]
                continue
            names.append(method)
    slots = {name: position for position, name in enumerate(names)}
    for needed in ("hasPrimaryContext", "hasCUDA", "isAvailable"):
        if needed not in slots:
            raise FakeCudaUnavailable(f"at::CUDAHooksInterface of this PyTorch has no {needed}")
    return slots


def _library(name: str) -> ctypes.CDLL:
    path = Path(torch.__file__).parent / "lib" / name
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise FakeCudaUnavailable(f"cannot open {path}: {error}") from error


def _install_guard() -> None:
    c10 = _library("libc10.so")
    try:
        registry = (ctypes.c_void_p * _DEVICE_TYPES).in_dll(
            c10, "_ZN3c104impl26device_guard_impl_registryE"
        )
    except ValueError as error:
        raise FakeCudaUnavailable("libc10 does not export its table of device guards") from error
    _kept.append(c10)
    if registry[_CUDA] is None:
        registry[_CUDA] = registry[_LAZY]
    before = registry[_CUDA]
    torch._C._ensureCUDADeviceGuardSet()
    if registry[_CUDA] == before:
        raise FakeCudaUnavailable(
            "PyTorch did not install its fake CUDA device guard; is a GPU visible? Set CUDA_VISIBLE_DEVICES= to hide it"
        )


def _install_hooks() -> None:
    libtorch = _library("libtorch_cpu.so")
    try:
        get_hooks = libtorch._ZN2at6detail12getCUDAHooksEv
    except AttributeError as error:
        raise FakeCudaUnavailable(
            "libtorch_cpu does not export at::detail::getCUDAHooks"
        ) from error
    get_hooks.restype = ctypes.c_void_p
    table_pointer = ctypes.cast(get_hooks(), ctypes.POINTER(ctypes.c_void_p))
    original = table_pointer[0]
    if original is None:
        raise FakeCudaUnavailable("the CUDA hooks have no virtual table")
    slots = hook_slots()
    entries = 2 + len(slots)  # offset to top and type information stand before the first method
    source = (ctypes.c_void_p * entries).from_address(original - 2 * ctypes.sizeof(ctypes.c_void_p))
    table = (ctypes.c_void_p * entries)(*list(source))
    predicate = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int8)
    yes, no = predicate(lambda _self, _device: True), predicate(lambda _self, _device: False)
    for method, answer in (
        ("hasPrimaryContext", no),
        ("hasCUDA", yes),
        ("isAvailable", yes),
        ("isBuilt", yes),
    ):
        if method in slots:
            table[2 + slots[method]] = ctypes.cast(answer, ctypes.c_void_p).value
    table_pointer[0] = ctypes.addressof(table) + 2 * ctypes.sizeof(ctypes.c_void_p)
    _kept.extend([libtorch, table, yes, no])

    def restore() -> None:
        table_pointer[0] = original

    atexit.register(restore)


def _register_kernels_of_cuda_build() -> None:
    """CPU build: says that these operators have a CUDA kernel, as they have in a CUDA build.

    They are the operators with both a CompositeImplicit and a CUDA kernel. Without a registration for CUDA the dispatcher
    decomposes them above us, and RMSNorm and the backward of SiLU would save and allocate other tensors than on a GPU.
    """
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)

    def never_runs(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("a CUDA kernel was called although every CUDA tensor is fake")

    for operator in ("_fused_rms_norm", "silu_backward", "mish_backward"):
        if hasattr(torch.ops.aten, operator):
            library.impl(operator, never_runs, "CUDA")


def _self_test() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    try:
        with mode:
            weight = torch.empty(4, 4, device="cuda", requires_grad=True)
            (weight @ weight).sum().backward()
            on_cuda = weight.grad is not None and weight.grad.device.type == "cuda"
    except Exception as error:
        raise FakeCudaUnavailable(
            f"autograd does not work on fake CUDA tensors: {error}"
        ) from error
    if not on_cuda:
        raise FakeCudaUnavailable("autograd on fake CUDA tensors gave no gradient")


_installed = False


def install() -> None:
    """Installs guard and hooks for the life of the process. Needs Python-level stand-ins (see `fake_cuda.install`) first.

    Raises:
        FakeCudaUnavailable: with the reason; nothing useful can be traced then.
    """
    global _installed
    if _installed:
        return
    _install_guard()
    _install_hooks()
    if not is_cuda_build():
        _register_kernels_of_cuda_build()
    # The engine would start a thread for each CUDA device; dispatch modes and module stacks belong to this one.
    torch.autograd.set_multithreading_enabled(False)
    _self_test()
    _installed = True
