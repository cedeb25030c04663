"""FSDP2's chunks of a parameter, made when they are asked for.

`fully_shard` splits each parameter into a chunk for every rank of its mesh and looks at two of them: this rank's, and the first for
the padded size (torch/distributed/fsdp/_fully_shard/_fsdp_param.py). On hundreds of ranks the fake tensors of the others take minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from memtracker_sidecar.replacements import Replacements


class Chunks(Sequence[torch.Tensor]):
    """What `_chunk_with_empty` returns: `count` views of a tensor along `dim`, those past its end empty."""

    def __init__(self, tensor: torch.Tensor, count: int, dim: int) -> None:
        self._tensor, self._count, self._dim = tensor, count, dim
        self._length = -(-tensor.size(dim) // count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        size = self._tensor.size(self._dim)
        position = range(self._count)[index]
        start = position * self._length
        if position > 0 and start >= size:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._length, size - start))


def install(replacements: Replacements) -> None:
    """Replaces the function for parameters on the meta device, of which nothing is recorded."""
    try:
        from torch.distributed.fsdp._fully_shard import _fsdp_param
    except ImportError:
        return
    original: Callable[..., Any] | None = getattr(_fsdp_param, "_chunk_with_empty", None)
    if original is None:
        return

    def chunk_with_empty(tensor: torch.Tensor, num_chunks: int, dim: int) -> Any:
        if tensor.device.type == "meta":
            return Chunks(tensor, num_chunks, dim)
        return original(tensor, num_chunks, dim)

    replacements.set(
        _fsdp_param,
        "_chunk_with_empty",
        chunk_with_empty,
        "makes a chunk of each parameter for every rank, of which two are looked at",
    )
