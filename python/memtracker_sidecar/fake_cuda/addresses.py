"""Addresses of memory that does not exist.

Libraries compare addresses to learn which tensors share memory. The storages of fake tensors are all at 0 and would seem to be
one; here each has a range of its own for as long as it keeps its size. PyTorch's own Python code is answered as before: to it, 0
is the sign of a tensor without memory (torch/_tensor.py, Tensor.__deepcopy__).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memtracker_sidecar.replacements import Replacements

_ALIGNMENT = 512  # of the caching allocator's blocks
_RANGE, _SHARED = "_memtracker_range", "_memtracker_shared"
_REASON = "storages of fake tensors have no address, and would seem to be the same memory"


class _Addresses:
    """Ranges that are handed out, one behind the other, to storages that are asked for theirs."""

    def __init__(self) -> None:
        self._end = _ALIGNMENT

    def of(self, storage: Any) -> int:
        """Kept on the storage's Python object, which lives as long as the storage."""
        shared = getattr(storage, _SHARED, None)
        if shared is not None:
            return self.of(shared)
        size = int(storage.nbytes())
        if size == 0:
            return 0
        known: tuple[int, int] | None = getattr(storage, _RANGE, None)
        if known is None or known[1] != size:
            known = (self._end, size)
            self._end += -(-size // _ALIGNMENT) * _ALIGNMENT
            setattr(storage, _RANGE, known)
        return known[0]


def share(destination: torch.Tensor, source: torch.Tensor) -> None:
    """The destination's storage stands at the memory of the source's from now on and keeps it alive, until it is resized."""
    setattr(destination.untyped_storage(), _SHARED, source.untyped_storage())


def stand_at(tensor: torch.Tensor, address: int) -> None:
    """The tensor's storage stands at memory of another one, which it does not keep alive."""
    storage = tensor.untyped_storage()
    setattr(storage, _RANGE, (address, int(storage.nbytes())))


def resized(storage: Any) -> None:
    """The storage has memory of its own again, or none."""
    vars(storage).pop(_SHARED, None)


def _pytorch_asks() -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "torch.storage":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).split(".")[0] == "torch"


def install(replacements: Replacements) -> None:
    """Answers `data_ptr()` of fake tensors and of their storages."""
    addresses = _Addresses()
    of_storage = torch.UntypedStorage.data_ptr

    def storage_data_ptr(storage: Any) -> int:
        if storage.device.type != "meta" or _pytorch_asks():
            return int(of_storage(storage))
        return addresses.of(storage)

    def tensor_data_ptr(tensor: FakeTensor) -> int:
        if _pytorch_asks():
            return int(torch.Tensor.data_ptr(tensor))
        start = addresses.of(tensor.untyped_storage())
        return start + int(tensor.storage_offset()) * tensor.element_size() if start else 0

    replacements.set(torch.UntypedStorage, "data_ptr", storage_data_ptr, _REASON)
    replacements.set(FakeTensor, "data_ptr", tensor_data_ptr, _REASON)
