"""Operators whose result depends on values, which fake tensors do not have.

Each gets a documented answer, and each answer is reported once for each call site, so that a reader sees which branch of the
training code was assumed. The answers:

* `item()`, `float(t)`, `bool(t)`: the number that the tensor was made of (`tensor_construction.KnownNumbers`), else 1.0, 1, False.
  False, because PyTorch loops on `while mask.any()` (`nn.init.trunc_normal_`), and because checks for NaN and overflow are asked
  with `any()`.
* `torch.equal`: True. Ranks agree, buckets match.
* `nonzero`, `masked_select`, `unique`: every element is selected (the largest result) unless told otherwise; `repeat_interleave`:
  each is repeated once.
* assertions on values hold; pinned memory is host memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memtracker_sidecar.recorder import Policy, StorageRecorder
from memtracker_sidecar.replacements import Replacements
from memtracker_sidecar.tensor_construction import KnownNumbers

aten = torch.ops.aten
Scalar = bool | int | float | complex


class DataDependentPolicies:
    """The answers of one run. Adapters change them through `scalar` and `selected`."""

    def __init__(self, uncovered: Callable[..., None]) -> None:
        self._uncovered = uncovered
        self._told: dict[Any, int] = {}
        self.known = KnownNumbers()
        self.scalar: Callable[[torch.Tensor], Scalar | None] | None = None
        """Asked first for the value of a one-element tensor; None leaves it to the default."""
        self.selected: Callable[[torch.Tensor, torch.Tensor], int | None] | None = None
        """Asked first how many elements a mask selects: (tensor, mask) -> number or None."""

    def install(self, recorder: StorageRecorder) -> None:
        policies: dict[Any, Policy] = {
            aten._local_scalar_dense.default: self._item,
            aten.equal.default: self._equal,
            aten.is_nonzero.default: lambda func, args, kwargs: (
                self._item(func, args, kwargs)
                if isinstance(args[0], FakeTensor)
                else NotImplemented
            ),
            aten.nonzero.default: self._nonzero,
            aten.masked_select.default: self._masked_select,
            aten.repeat_interleave.Tensor: self._repeat_interleave,
            aten._assert_async.default: lambda func, args, kwargs: None,
            aten._assert_async.msg: lambda func, args, kwargs: None,
            aten._pin_memory.default: lambda func, args, kwargs: torch.empty_like(args[0]),
            aten.is_pinned.default: lambda func, args, kwargs: True,
        }
        for name in ("_unique2", "unique_dim", "unique_consecutive"):
            packet = getattr(aten, name, None)
            if packet is not None:
                policies[packet.default] = self._unique
        for packet in (
            aten.index.Tensor,
            aten.index_put.default,
            aten.index_put_.default,
            aten._index_put_impl_.default,
        ):
            policies[packet] = self._index
        self._recorder = recorder
        recorder.policies.update(policies)

    def _item(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
            return NotImplemented
        if torch.compiler.is_compiling():
            return NotImplemented
        if self.scalar is not None:
            value = self.scalar(tensor)
            if value is not None:
                return value
        number = self.known.of(tensor)
        if number is not None:
            return number
        if _asks_for_overflow():
            # GradScaler skips a step whose gradients overflowed; the job being planned does not.
            self._uncovered(
                "data_dependent",
                "found_inf",
                assumption="no gradient overflowed, so the optimizer steps",
            )
            return 0.0
        if tensor.dtype is torch.bool:
            answer: Scalar = False
        elif tensor.dtype.is_complex:
            answer = complex(1.0)
        elif tensor.dtype.is_floating_point:
            answer = 1.0
        else:
            answer = 1
        self._uncovered("data_dependent", "item", assumption=f"the value is {answer}")
        return answer

    def _equal(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(args[0], FakeTensor) and not isinstance(args[1], FakeTensor):
            return NotImplemented
        self._uncovered("data_dependent", "equal", assumption="the tensors are equal")
        return True

    def _count(
        self,
        tensor: torch.Tensor,
        mask: torch.Tensor,
        operator: str,
        assumption: str = "every element is selected",
    ) -> int:
        """How many elements a mask selects. What was said of a mask in forward holds for it in backward."""
        key = self._key(mask)
        if key in self._told:
            return self._told[key]
        if self.selected is not None:
            count = self.selected(tensor, mask)
            if count is not None:
                if key is not None:
                    self._told[key] = count
                return count
        self._uncovered("data_dependent", operator, assumption=assumption)
        return mask.numel()

    def _key(self, mask: torch.Tensor) -> tuple[Any, ...] | None:
        """The mask with its present values: storage, shape, and how often it was written to."""
        live = self._recorder.find(mask)
        return (live[0].id, tuple(mask.shape), mask._version) if live else None

    def _nonzero(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor) or torch.compiler.is_compiling():
            return NotImplemented
        count = self._count(tensor, tensor, "nonzero")
        # A (dimensions, count) buffer, transposed: aten/src/ATen/native/cuda/Nonzero.cu, nonzero_cuda_out_impl.
        return tensor.new_empty((tensor.dim(), count), dtype=torch.int64).t()

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A boolean index becomes the indices that nonzero() finds (aten/src/ATen/native/IndexingUtils.h, expandTensors)."""
        tensor, indices, *rest = args
        if not isinstance(tensor, FakeTensor) or torch.compiler.is_compiling():
            return NotImplemented
        if not any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices
        ):
            return NotImplemented
        if func is not aten.index.Tensor and _fills(indices, rest):
            # TensorAdvancedIndexing.cpp, canDispatchToMaskedFill: `t[mask] = 0.0` looks for no positions.
            with self._recorder.inside_policy():
                mask = next(index for index in indices if index is not None)
                for _ in range(tensor.dim() - mask.dim()):
                    mask = mask.unsqueeze(-1)
                fill = aten.masked_fill if func is aten.index_put.default else aten.masked_fill_
                return fill(tensor, mask, 0)
        expanded: list[torch.Tensor | None] = []
        with self._recorder.inside_policy():
            for index in indices:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    expanded.extend(index.nonzero().unbind(1))
                else:
                    expanded.append(index)
            return func(tensor, expanded, *rest, **kwargs)

    def _masked_select(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, mask = args
        if not isinstance(tensor, FakeTensor) or torch.compiler.is_compiling():
            return NotImplemented
        shape = torch.broadcast_shapes(tensor.shape, mask.shape)
        full = mask.expand(shape)
        return tensor.new_empty((self._count(tensor, full, "masked_select"),))

    def _repeat_interleave(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Positions, each as often as `repeats` says: as many as a mask with these row sums selects."""
        repeats, size = args[0], kwargs.get("output_size")
        if not isinstance(repeats, FakeTensor) or torch.compiler.is_compiling() or size is not None:
            return NotImplemented
        assumption = "every element is repeated once"
        return repeats.new_empty((self._count(repeats, repeats, "repeat_interleave", assumption),))

    def _unique(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor) or torch.compiler.is_compiling():
            return NotImplemented
        given = {each.name: each.default_value for each in func._schema.arguments}
        given.update(zip(given, args, strict=False), **kwargs)
        shape, dim = list(tensor.shape), given.get("dim")
        if dim is None:
            count, inverse = self._count(tensor, tensor, "unique"), shape
            shape = [count]
        else:
            rows = tensor.movedim(dim, -1)
            while rows.dim() > 1:
                rows = rows[0]
            count, inverse = self._count(tensor, rows, "unique"), [shape[dim]]
            shape[dim] = count
        # aten/src/ATen/native/cuda/Unique.cu: what was not asked for is empty.
        return (
            tensor.new_empty(shape),
            tensor.new_empty(inverse if given["return_inverse"] else [0], dtype=torch.int64),
            tensor.new_empty([count] if given["return_counts"] else [0], dtype=torch.int64),
        )


def _fills(indices: Any, rest: Any) -> bool:
    """Whether index_put becomes masked_fill: one mask, over the leading dimensions, and a number from the host."""
    value, accumulate = rest[0], bool(rest[1]) if len(rest) > 1 else False
    given = [index for index in indices if index is not None]
    return (
        not accumulate
        and len(given) == 1
        and indices[0] is given[0]
        and value.numel() == 1
        and value.device.type == "cpu"
    )


def _asks_for_overflow() -> bool:
    """Whether torch.amp.GradScaler reads whether it found an infinity."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(10):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("grad_scaler.py"):
            return True
        frame = frame.f_back
    return False


def install_conversions(replacements: Replacements, uncovered: Callable[..., None]) -> None:
    """`tensor.numpy()` of a fake tensor gives zeros of the same shape, and a scalar can be formatted: for code that plots and logs."""
    original = torch.Tensor.numpy
    original_format = torch.Tensor.__format__

    def formatted(tensor: torch.Tensor, how: str) -> str:
        if isinstance(tensor, FakeTensor) and tensor.dim() == 0 and how:
            return format(tensor.item(), how)
        return str(original_format(tensor, how))

    def numpy(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return original(tensor, *arguments, **options)
        uncovered("data_dependent", "numpy", assumption="the values are zeros")
        with unset_fake_temporarily(), _disable_current_modes():
            return original(torch.zeros(tensor.shape, dtype=tensor.dtype))

    replacements.set(torch.Tensor, "numpy", numpy, "fake tensors have no values")
    replacements.set(
        torch.Tensor, "__format__", formatted, "only plain tensors are formatted by value"
    )
