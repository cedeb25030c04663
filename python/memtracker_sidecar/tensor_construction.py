"""`torch.tensor` of values that are fake tensors.

PyTorch reads each element of the list with `item()` and copies the values from the host. On fake tensors the elements have to be
read before, because the C++ constructor would build a real tensor of them on a device that is not there.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memtracker_sidecar.replacements import Replacements


def _numbers(data: Any) -> Any:
    if isinstance(data, FakeTensor) and data.numel() == 1:
        return data.item()
    if type(data) in (list, tuple):
        return type(data)(_numbers(item) for item in data)
    return data


def install(replacements: Replacements) -> None:
    """Replaces `torch.tensor`."""
    original = torch.tensor

    @functools.wraps(original)
    def tensor(data: Any, *arguments: Any, **options: Any) -> torch.Tensor:
        if type(data) in (list, tuple):
            data = _numbers(data)
        return original(data, *arguments, **options)

    replacements.set(torch, "tensor", tensor, "elements that are fake tensors are read one by one")
