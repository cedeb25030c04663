"""`torch.tensor` of values that are fake tensors, and of values that are known.

PyTorch reads each element of the list with `item()` and copies the values from the host. On fake tensors the elements have to be
read before, because the C++ constructor would build a real tensor of them on a device that is not there.

Training code sends single numbers through tensors to agree with other ranks: it makes a tensor of a number, reduces it, and reads
it back. The number of such a tensor is kept until an operator writes to it or another rank's value arrives in it. A reduction does
not count as that: ranks of a job in step hold the same number, and the least, the greatest and the mean of equal numbers is that
number. (A sum is not scaled by the number of ranks; it is compared with zero.)
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakTensorKeyDictionary

from memtracker_sidecar.replacements import Replacements

Number = bool | int | float


class KnownNumbers:
    """The numbers that one-element tensors were made of."""

    def __init__(self) -> None:
        self._made_of = WeakTensorKeyDictionary()

    def learn(self, tensor: torch.Tensor, data: Any) -> None:
        while type(data) in (list, tuple) and len(data) == 1:
            data = data[0]
        if type(data) in (bool, int, float) and tensor.numel() == 1:
            self._made_of[tensor] = (tensor._version, data)

    def forget(self, tensor: torch.Tensor) -> None:
        self._made_of.pop(tensor, None)

    def of(self, tensor: torch.Tensor) -> Number | None:
        """The number in `tensor`, or None when it is not known or was written over."""
        version, number = self._made_of.get(tensor, (None, None))
        return number if version == tensor._version else None


def _numbers(data: Any) -> Any:
    if isinstance(data, FakeTensor) and data.numel() == 1:
        return data.item()
    if type(data) in (list, tuple):
        return type(data)(_numbers(item) for item in data)
    return data


def install(replacements: Replacements, known: KnownNumbers) -> None:
    """Replaces `torch.tensor`."""
    original = torch.tensor

    @functools.wraps(original)
    def tensor(data: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        if type(data) in (list, tuple):
            data = _numbers(data)
        made = original(data, *arguments, **options)
        if isinstance(made, FakeTensor):
            known.learn(made, data)
        return made

    replacements.set(torch, "tensor", tensor, "elements that are fake tensors are read one by one")
