"""Reductions (sum, mean, max, norm, var, ...): partial results of several blocks for one output, in global memory.

The sum of the rows of a matrix, which is the gradient of a bias, takes more than a hundred MiB on a large GPU, whatever the size of
its result. The launch geometry is that of PyTorch, aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig and ReduceConfig.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from memtracker_sidecar.workspace_rules import Call, GpuLimits, Workspace, WorkspaceRules, argument

_SOURCE = "PyTorch, aten/src/ATen/native/cuda/Reduce.cuh, setReduceConfig and gpu_reduce_kernel"
_MAX_THREADS = 512
_WARP = 32
_VECTOR = 4
_MIN_VALUES, _MAX_VALUES = 16, 256

_SUMS = (
    "aten::sum",
    "aten::mean",
    "aten::nansum",
    "aten::prod",
    "aten::amax",
    "aten::amin",
    "aten::linalg_vector_norm",
    "aten::norm",
)
_WITH_INDEX = ("aten::max", "aten::min", "aten::argmax", "aten::argmin")
_MOMENTS = ("aten::var", "aten::std", "aten::var_mean", "aten::std_mean", "aten::var.correction")
_LOGICAL = ("aten::any", "aten::all")


@dataclass(frozen=True)
class Geometry:
    """A reduction as TensorIterator sees it: sizes and strides in elements, fastest first, after merging."""

    reduced: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int], ...]

    @property
    def inputs(self) -> int:
        return _product(size for size, _ in self.reduced)

    @property
    def outputs(self) -> int:
        return _product(size for size, _ in self.kept)


def _product(values: Iterable[int]) -> int:
    result = 1
    for value in values:
        result *= value
    return result


def geometry(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> Geometry:
    """Splits a tensor's dimensions into reduced and kept, sorts them by stride and merges neighbours."""
    wanted = {dim % len(shape) for dim in dims} if shape else set()

    def merged(group: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
        result: list[tuple[int, int]] = []
        for size, stride in sorted(group, key=lambda pair: pair[1]):
            if result and result[-1][0] * result[-1][1] == stride:
                result[-1] = (result[-1][0] * size, result[-1][1])
            else:
                result.append((size, stride))
        return tuple(result)

    sides: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for dim, (size, stride) in enumerate(zip(shape, strides)):
        if size != 1:
            sides[dim not in wanted].append((size, stride))
    return Geometry(merged(sides[0]), merged(sides[1]))


def _last_power(value: int) -> int:
    return 1 << (max(1, value).bit_length() - 1)


def _ceil(value: int, divisor: int) -> int:
    return -(-value // divisor)


def global_memory(
    shape: Geometry, element: int, gpu: GpuLimits, vectors: int = 4
) -> tuple[int, int]:
    """(bytes of the partial results, bytes of the semaphores) of one reduction; zeros when one block does each output.

    `element` is the size of the accumulator in bytes, `vectors` how many values a thread loads at once (vt0).
    """
    inputs, outputs = shape.inputs, shape.outputs
    if inputs == 0 or outputs == 0:
        return 0, 0
    fastest_reduced = not shape.kept or (
        bool(shape.reduced) and shape.reduced[0][1] < shape.kept[0][1]
    )
    if fastest_reduced:
        width, height = inputs, outputs
        stride = shape.reduced[0][1] if shape.reduced else 1
    else:
        width, height = outputs, inputs
        stride = shape.kept[0][1]
    output_vector = 1
    vectorized = False
    if stride == 1:
        if fastest_reduced and width > 128 and len(shape.reduced) == 1 and vectors >= _VECTOR:
            vectorized = True
            width //= _VECTOR
        elif not fastest_reduced:
            output_vector = _output_vector(shape)
            width //= output_vector
    threads = _MAX_THREADS // output_vector
    width_power = _last_power(width) if width < threads else threads
    height_power = _last_power(height) if height < threads else threads
    block_width = min(width_power, _WARP)
    block_height = min(height_power, threads // block_width)
    block_width = min(width_power, threads // block_height)
    step_input = step_output = 1
    if fastest_reduced:
        step_input *= block_width
    else:
        step_output *= block_width
    if vectorized:
        pass  # the vector is loaded by one thread; values_per_thread counts scalars
    across_warps = _ceil(inputs, step_input) >= min(block_height * 16, _MAX_VALUES)
    if across_warps:
        step_input *= block_height
    else:
        step_output *= block_height
    blocks = gpu.threads_per_multiprocessor // (block_width * block_height)
    target = gpu.multiprocessors * blocks
    grid = _ceil(outputs // output_vector, step_output)
    values = _ceil(inputs, step_input)
    if not across_warps or values < _MAX_VALUES or grid > target:
        return 0, 0
    split = max(min(_ceil(target, grid), _ceil(values, _MIN_VALUES)), _ceil(values, _MAX_VALUES))
    if split <= 1:
        return 0, 0
    size = element * outputs * split
    if not fastest_reduced:
        size *= block_width * output_vector
    return size, 4 * grid


def _output_vector(shape: Geometry) -> int:
    """get_output_vec_size: 4, 2 or 1 outputs a thread, as shape and strides of the input allow."""
    vector = _VECTOR
    others = [stride for _, stride in (*shape.reduced, *shape.kept[1:])]
    for number in (shape.kept[0][0], *others):
        while number % vector:
            vector //= 2
    return vector


def _dims(call: Call, tensor: torch.Tensor) -> list[int]:
    dim = argument(call, "dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(tensor.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def _accumulator(tensor: torch.Tensor, operator: str) -> tuple[int, int]:
    """(bytes of the accumulator of one output, values a thread loads at once)."""
    item = tensor.element_size()
    if operator in _LOGICAL:
        return 1, 4
    if operator in _MOMENTS:
        return 16 if item <= 4 else 32, 2  # WelfordData: mean, m2, count, count as float
    if operator in ("aten::max", "aten::min", "aten::amax", "aten::amin"):
        return item, 4
    return (max(4, item) if tensor.is_floating_point() else 8), 4


def _reduction(call: Call) -> Iterable[Workspace]:
    tensor = call.args[0]
    if not isinstance(tensor, torch.Tensor) or tensor.is_complex():
        return ()
    operator = call.func._schema.name
    element, vectors = _accumulator(tensor, operator)
    if operator in _WITH_INDEX:
        if call.func._overloadname == "other":
            return ()
        with_index = call.func._overloadname.startswith("dim") or operator.startswith("aten::arg")
        if with_index:
            element = 16  # a pair of value and index
    shape = geometry(tuple(tensor.shape), tensor.stride(), _dims(call, tensor))
    partial, semaphores = global_memory(shape, element, call.gpu, vectors)
    return (
        Workspace(partial, "partial results of a reduction", "after", _SOURCE),
        Workspace(semaphores, "semaphores of a reduction", "after", _SOURCE),
    )


def _logsumexp(call: Call) -> Iterable[Workspace]:
    # aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl: maxima, then exp(self - maxima) in full size.
    tensor = call.args[0]
    source = "PyTorch, aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl"
    maxima = call.out.numel() * call.out.element_size() if call.out is not None else 0
    return (
        Workspace(maxima, "maxima of logsumexp", "after", source),
        Workspace(
            tensor.numel() * tensor.element_size(), "exponentials of logsumexp", "after", source
        ),
    )


def register(rules: WorkspaceRules) -> None:
    rules.add((*_SUMS, *_WITH_INDEX, *_MOMENTS, *_LOGICAL), _reduction)
    rules.add(("aten::logsumexp",), _logsumexp)
