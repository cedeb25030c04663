"""Quantized tensors: how TE's host code creates them, and what a quantize call allocates beside them.

One function a quantizer class (csrc/quantizer.cpp, `create_tensor` and `quantize` of each). The Python tensor classes of
TransformerEngine hold the buffers; here they only get buffers of the right size, in the right order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from memtracker_sidecar.kernels.transformer_engine.enums import torch_dtype
from memtracker_sidecar.kernels.transformer_engine.table import (
    TABLE,
    compute_capability,
    non_tn_fp8_gemm_supported,
)

Shape = Sequence[int]

DELAYED = "Float8Quantizer"
CURRENT = "Float8CurrentScalingQuantizer"
MXFP8 = "MXFP8Quantizer"
BLOCKWISE = "Float8BlockQuantizer"
NVFP4 = "NVFP4Quantizer"


def kind_of(quantizer: Any) -> str:
    """The quantizer's class by name, '' for none: TE's detail::Is*Quantizers test the exact class too."""
    return "" if quantizer is None else type(quantizer).__name__


def logical_shape(tensor: Any) -> list[int]:
    """The shape of a tensor or of a quantized tensor that may hold its transpose only (TensorWrapper::shape)."""
    if getattr(tensor, "_data", 0) is None and getattr(tensor, "_transpose", None) is not None:
        size = list(tensor._transpose.size())
        return [*size[1:], size[0]]
    return list(tensor.size())


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def ceil_div(value: int, divisor: int) -> int:
    return -(-value // divisor)


def matrix_dims(shape: Shape) -> tuple[int, int]:
    """get_2d_dims of csrc/common.h: all outer dimensions flattened."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def plain(shape: Shape, dtype: torch.dtype, device: Any) -> torch.Tensor:
    return torch.empty(list(shape), dtype=dtype, device=device)


def float8_block_scale_shape(
    shape: Shape, scaling_dim: int, columnwise: bool, block: int = 128
) -> list[int]:
    """csrc/quantizer.cpp Float8BlockQuantizer::get_scale_shape."""
    rows, columns = matrix_dims(shape)
    if scaling_dim == 2:
        outer, inner = (columns, rows) if columnwise else (rows, columns)
        return [ceil_div(outer, block), round_up(ceil_div(inner, block), 4)]
    outer, inner = (rows, columns) if columnwise else (columns, rows)
    return [ceil_div(outer, block), round_up(inner, 4)]


def mxfp8_scale_shape(shape: Shape, columnwise: bool, block: int = 32) -> list[int]:
    """csrc/quantizer.cpp MXFP8Quantizer::get_scale_shape."""
    rows, columns = matrix_dims(shape)
    if columnwise:
        return [round_up(rows // block, 4), round_up(columns, 128)]
    return [round_up(rows, 128), round_up(columns // block, 4)]


def nvfp4_scale_shape(shape: Shape, columnwise: bool, block: int = 16) -> list[int]:
    """csrc/quantizer.cpp NVFP4Quantizer::get_scale_shape."""
    rows, columns = matrix_dims(shape)
    outer, inner = (columns, rows) if columnwise else (rows, columns)
    return [round_up(outer, 128), round_up(inner // block, 4)]


def nvfp4_fused_hadamard(shape: Shape, rows_multiple: int = 64) -> bool:
    """csrc/quantizer.cpp NVFP4Quantizer::is_eligible_for_rht_cast_fusion."""
    rows, columns = matrix_dims(shape)
    return rows % rows_multiple == 0 and columns % 128 == 0 and 100 <= compute_capability() <= 110


def _contiguous_strides(shape: Shape) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


def _assemble(
    full: type,
    storage: type,
    quantizer: Any,
    shape: Shape,
    dtype: torch.dtype,
    device: Any,
    buffers: dict[str, Any],
) -> Any:
    """The Python tensor: the bare storage class when the quantizer is internal, else the torch.Tensor subclass."""
    if bool(getattr(quantizer, "internal", False)):
        return storage(quantizer=quantizer, fake_dtype=dtype, **buffers)
    return full(
        shape=list(shape),
        stride=_contiguous_strides(shape),
        dtype=dtype,
        device=device,
        quantizer=quantizer,
        **buffers,
    )


def _float8(
    quantizer: Any, shape: Shape, dtype: torch.dtype, device: Any, data: torch.Tensor | None
) -> Any:
    from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor
    from transformer_engine.pytorch.tensor.storage.float8_tensor_storage import Float8TensorStorage

    any_layout = non_tn_fp8_gemm_supported()
    scale_inv = None
    if kind_of(quantizer) == DELAYED:  # created first: Float8Quantizer::create_tensor
        scale_inv = (
            torch.reciprocal(quantizer.scale)
            if data is not None
            else plain([1], torch.float32, device)
        )
    if not (quantizer.rowwise_usage or any_layout):
        data = None
    elif data is None:
        data = plain(shape, torch.uint8, device)
    transpose = None
    if quantizer.columnwise_usage and not any_layout:
        transpose = plain([shape[-1], *shape[:-1]], torch.uint8, device)
    if scale_inv is None:
        scale_inv = plain([1], torch.float32, device)
    buffers = {
        "data": data,
        "fp8_scale_inv": scale_inv,
        "fp8_dtype": quantizer.dtype,
        "data_transpose": transpose,
    }
    return _assemble(Float8Tensor, Float8TensorStorage, quantizer, shape, dtype, device, buffers)


def _mxfp8(quantizer: Any, shape: Shape, dtype: torch.dtype, device: Any, swizzled: bool) -> Any:
    from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Tensor
    from transformer_engine.pytorch.tensor.storage.mxfp8_tensor_storage import MXFP8TensorStorage

    buffers: dict[str, Any] = {}
    for name, columnwise, used in (
        ("rowwise", False, quantizer.rowwise_usage),
        ("columnwise", True, quantizer.columnwise_usage),
    ):
        buffers[f"{name}_data"] = plain(shape, torch.uint8, device) if used else None
        buffers[f"{name}_scale_inv"] = (
            plain(mxfp8_scale_shape(shape, columnwise), torch.uint8, device) if used else None
        )
    buffers["fp8_dtype"] = quantizer.dtype
    buffers["with_gemm_swizzled_scales"] = swizzled
    return _assemble(MXFP8Tensor, MXFP8TensorStorage, quantizer, shape, dtype, device, buffers)


def _blockwise(quantizer: Any, shape: Shape, dtype: torch.dtype, device: Any) -> Any:
    from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockwiseQTensor
    from transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage import (
        Float8BlockwiseQTensorStorage,
    )

    dim = int(quantizer.block_scaling_dim)
    buffers: dict[str, Any] = {
        "rowwise_data": None,
        "rowwise_scale_inv": None,
        "columnwise_data": None,
        "columnwise_scale_inv": None,
    }
    if quantizer.rowwise_usage:
        buffers["rowwise_data"] = plain(shape, torch.uint8, device)
        buffers["rowwise_scale_inv"] = plain(
            float8_block_scale_shape(shape, dim, False), torch.float32, device
        )
    if quantizer.columnwise_usage:
        buffers["columnwise_data"] = plain([shape[-1], *shape[:-1]], torch.uint8, device)
        buffers["columnwise_scale_inv"] = plain(
            float8_block_scale_shape(shape, dim, True), torch.float32, device
        )
    buffers["fp8_dtype"] = quantizer.dtype
    buffers["is_2D_scaled"] = dim == 2
    return _assemble(
        Float8BlockwiseQTensor,
        Float8BlockwiseQTensorStorage,
        quantizer,
        shape,
        dtype,
        device,
        buffers,
    )


def _nvfp4_kind(quantizer: Any, swizzled: bool) -> dict[str, Any]:
    """What a tensor carries beside its buffers."""
    return {
        "fp4_dtype": quantizer.dtype,
        "quantizer": quantizer,
        "with_gemm_swizzled_scales": swizzled,
        "row_scaled_nvfp4": bool(quantizer.row_scaled_nvfp4),
        "nvfp4_use_4over6": bool(quantizer.nvfp4_use_4over6),
        "nvfp4_e4m3_max": quantizer.nvfp4_e4m3_max,
    }


def _nvfp4(quantizer: Any, shape: Shape, dtype: torch.dtype, device: Any) -> Any:
    from transformer_engine.pytorch.tensor.nvfp4_tensor import NVFP4Tensor
    from transformer_engine.pytorch.tensor.storage.nvfp4_tensor_storage import NVFP4TensorStorage

    rows, columns = matrix_dims(shape)
    swizzled = bool(
        quantizer.optimize_for_gemm and quantizer.with_rht and nvfp4_fused_hadamard(shape)
    )
    buffers: dict[str, Any] = {}
    for name, columnwise, used, data in (
        ("rowwise", False, quantizer.rowwise_usage, [*shape[:-1], shape[-1] // 2]),
        ("columnwise", True, quantizer.columnwise_usage, [columns, rows // 2]),
    ):
        amaxes = rows if quantizer.row_scaled_nvfp4 and not columnwise else 1
        buffers[f"{name}_data"] = plain(data, torch.uint8, device) if used else None
        buffers[f"{name}_scale_inv"] = (
            plain(nvfp4_scale_shape(shape, columnwise), torch.uint8, device) if used else None
        )
        buffers[f"amax_{name}"] = plain([amaxes], torch.float32, device) if used else None
    kind = _nvfp4_kind(quantizer, swizzled)
    if bool(getattr(quantizer, "internal", False)):
        return NVFP4TensorStorage(fake_dtype=dtype, **buffers, **kind)
    return NVFP4Tensor(
        shape=list(shape),
        stride=_contiguous_strides(shape),
        dtype=dtype,
        device=device,
        **buffers,
        **kind,
    )


def create(
    quantizer: Any,
    shape: Shape,
    dtype: torch.dtype,
    device: Any,
    *,
    data: torch.Tensor | None = None,
    optimize_for_gemm: bool | None = None,
) -> Any:
    """Quantizer::create_tensor. Without a quantizer: a plain tensor. `data`: a buffer that already exists."""
    kind = kind_of(quantizer)
    if kind == "":
        return plain(shape, dtype, device) if data is None else data
    if kind in (DELAYED, CURRENT):
        return _float8(quantizer, shape, dtype, device, data)
    if kind == MXFP8:
        swizzled = (
            bool(quantizer.optimize_for_gemm) if optimize_for_gemm is None else optimize_for_gemm
        )
        return _mxfp8(quantizer, shape, dtype, device, swizzled)
    if kind == BLOCKWISE:
        return _blockwise(quantizer, shape, dtype, device)
    if kind == NVFP4:
        return _nvfp4(quantizer, shape, dtype, device)
    return quantizer.make_empty(list(shape), dtype=dtype, device=device)


def run_quantize(quantizer: Any, device: Any, shape: Shape, dtype: torch.dtype) -> None:
    """Quantizer::quantize of a source of this shape: the temporaries of the cast itself, gone when it returns."""
    kind = kind_of(quantizer)
    if kind == CURRENT:
        plain([2], torch.float32, device)  # amax and scale, Float8CurrentScalingQuantizer::quantize
    elif kind == NVFP4 and 0 not in shape:
        fused = dtype is torch.bfloat16 and nvfp4_fused_hadamard(shape)
        held = []  # NVFP4Quantizer::quantize_impl: generator states, then the transformed source
        if quantizer.stochastic_rounding:
            held.append(plain([2], torch.int64, device))
            if quantizer.with_rht and quantizer.columnwise_usage and not fused:
                held.append(plain([2], torch.int64, device))
        if quantizer.with_rht and not fused:
            rows, columns = matrix_dims(shape)
            held.append(plain([columns, rows], dtype, device))


def run_quantize_with_amax(quantizer: Any, device: Any) -> None:
    """Float8CurrentScalingQuantizer::quantize_with_amax: a scale buffer."""
    if kind_of(quantizer) == CURRENT:
        plain([1], torch.float32, device)


def unquantized_with_amax(
    shape: Shape, dtype: torch.dtype, device: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float8CurrentScalingQuantizer::create_unquantized_tensor_with_amax: amax first, then the tensor."""
    amax = torch.zeros(1, dtype=torch.float32, device=device)
    return plain(shape, dtype, device), amax


@TABLE.kernel("extensions/cast.cpp create_empty_quantized_tensor")
def create_empty_quantized_tensor(
    quantizer: Any, shape: Shape, dtype: Any, device: Any = "cuda", pin_memory: bool = False
) -> Any:
    return create(quantizer, list(shape), torch_dtype(dtype), device)


@TABLE.kernel("extensions/cast.cpp quantize")
def quantize(
    tensor: torch.Tensor, quantizer: Any, output: Any = None, noop_flag: Any = None
) -> Any:
    source = tensor.contiguous()
    if output is None:
        output = create(quantizer, logical_shape(source), source.dtype, source.device)
    run_quantize(quantizer, source.device, logical_shape(source), source.dtype)
    return output


@TABLE.kernel("extensions/cast.cpp dequantize")
def dequantize(tensor: Any, otype: Any) -> torch.Tensor:
    return plain(logical_shape(tensor), torch_dtype(otype), tensor.device)


@TABLE.kernel("extensions/cast.cpp multi_tensor_quantize")
def multi_tensor_quantize(tensors: Sequence[torch.Tensor], quantizers: Sequence[Any]) -> list[Any]:
    return [
        quantize(tensor, quantizer) for tensor, quantizer in zip(tensors, quantizers, strict=True)
    ]


@TABLE.kernel(
    "extensions/cast.cpp split_quantize, bulk_allocate_{fp8_blockwise,mxfp8,nvfp4}_tensors"
)
def split_quantize(
    tensor: torch.Tensor,
    splits: Sequence[int],
    quantizers: Sequence[Any],
    disable_bulk_allocation: bool = False,
) -> list[Any]:
    source = tensor.contiguous()
    shapes = [[int(split), *logical_shape(source)[1:]] for split in splits]
    kinds = {kind_of(quantizer) for quantizer in quantizers}
    if not disable_bulk_allocation and kinds == {BLOCKWISE}:
        return _bulk_blockwise(shapes, quantizers, source)
    if not disable_bulk_allocation and kinds == {MXFP8}:
        return _bulk_mxfp8(shapes, quantizers, source)
    if not disable_bulk_allocation and kinds == {NVFP4}:
        return _bulk_nvfp4(shapes, quantizers, source)
    outputs = [
        create(quantizer, shape, source.dtype, source.device)
        for quantizer, shape in zip(quantizers, shapes, strict=True)
    ]
    for quantizer, shape in zip(quantizers, shapes, strict=True):
        run_quantize(quantizer, source.device, shape, source.dtype)
    return outputs


def _bulk(
    shapes: list[list[int]],
    scale_shape: Callable[[list[int]], list[int]],
    scale_dtype: torch.dtype,
    device: Any,
    transposed: bool,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Data (aligned to 256 B) and scales (to 16 B) of all splits in one buffer."""
    count = len(shapes)
    data_shapes = [[shape[-1], *shape[:-1]] if transposed else shape for shape in shapes]
    tensors = bulk_allocate(
        [*data_shapes, *(scale_shape(shape) for shape in shapes)],
        [torch.uint8] * count + [scale_dtype] * count,
        device,
        [256] * count + [16] * count,
    )
    return tensors[:count], tensors[count:]


def _bulk_blockwise(
    shapes: list[list[int]], quantizers: Sequence[Any], source: torch.Tensor
) -> list[Any]:
    from transformer_engine.pytorch.tensor.storage.float8_blockwise_tensor_storage import (
        Float8BlockwiseQTensorStorage,
    )

    first = quantizers[0]
    dim = int(first.block_scaling_dim)
    sides: dict[str, tuple[list[Any], list[Any]]] = {}
    for name, columnwise, used in (
        ("rowwise", False, first.rowwise_usage),
        ("columnwise", True, first.columnwise_usage),
    ):
        sides[name] = (
            _bulk(
                shapes,
                lambda shape, columnwise=columnwise: float8_block_scale_shape(
                    shape, dim, columnwise
                ),  # type: ignore[misc]
                torch.float32,
                source.device,
                columnwise,
            )
            if used
            else ([None] * len(shapes), [None] * len(shapes))
        )
    return [
        Float8BlockwiseQTensorStorage(
            rowwise_data=sides["rowwise"][0][i],
            rowwise_scale_inv=sides["rowwise"][1][i],
            columnwise_data=sides["columnwise"][0][i],
            columnwise_scale_inv=sides["columnwise"][1][i],
            fp8_dtype=first.dtype,
            quantizer=quantizer,
            is_2D_scaled=dim == 2,
            fake_dtype=source.dtype,
        )
        for i, quantizer in enumerate(quantizers)
    ]


def _bulk_mxfp8(
    shapes: list[list[int]], quantizers: Sequence[Any], source: torch.Tensor
) -> list[Any]:
    from transformer_engine.pytorch.tensor.storage.mxfp8_tensor_storage import MXFP8TensorStorage

    first = quantizers[0]
    sides: dict[str, tuple[list[Any], list[Any]]] = {}
    for name, columnwise, used in (
        ("rowwise", False, first.rowwise_usage),
        ("columnwise", True, first.columnwise_usage),
    ):
        sides[name] = (
            _bulk(
                shapes,
                lambda shape, columnwise=columnwise: mxfp8_scale_shape(shape, columnwise),  # type: ignore[misc]
                torch.uint8,
                source.device,
                False,
            )
            if used
            else ([None] * len(shapes), [None] * len(shapes))
        )
    return [
        MXFP8TensorStorage(
            rowwise_data=sides["rowwise"][0][i],
            rowwise_scale_inv=sides["rowwise"][1][i],
            columnwise_data=sides["columnwise"][0][i],
            columnwise_scale_inv=sides["columnwise"][1][i],
            fp8_dtype=first.dtype,
            quantizer=quantizer,
            with_gemm_swizzled_scales=bool(first.optimize_for_gemm),
            fake_dtype=source.dtype,
        )
        for i, quantizer in enumerate(quantizers)
    ]


def _bulk_nvfp4(
    shapes: list[list[int]], quantizers: Sequence[Any], source: torch.Tensor
) -> list[Any]:
    """Data, scales and amaxes of each side in one buffer; then what the cast itself takes."""
    from transformer_engine.pytorch.tensor.storage.nvfp4_tensor_storage import NVFP4TensorStorage

    first, count, device = quantizers[0], len(shapes), source.device
    buffers: dict[str, list[Any]] = {}
    for name, columnwise, used in (
        ("rowwise", False, first.rowwise_usage),
        ("columnwise", True, first.columnwise_usage),
    ):
        data = [[shape[-1], *shape[:-1]] if columnwise else shape for shape in shapes]
        amaxes = [
            [matrix_dims(shape)[0] if first.row_scaled_nvfp4 and not columnwise else 1]
            for shape in shapes
        ]
        tensors: list[Any] = [None] * (3 * count)
        if used:
            tensors = list(
                bulk_allocate(
                    [
                        *([*shape[:-1], shape[-1] // 2] for shape in data),
                        *(nvfp4_scale_shape(shape, columnwise) for shape in shapes),
                        *amaxes,
                    ],
                    [torch.uint8] * (2 * count) + [torch.float32] * count,
                    device,
                    [256] * count + [16] * (2 * count),
                )
            )
        buffers[f"{name}_data"] = tensors[:count]
        buffers[f"{name}_scale_inv"] = tensors[count : 2 * count]
        buffers[f"amax_{name}"] = tensors[2 * count :]
    fused = all(nvfp4_fused_hadamard(shape, 128) for shape in shapes)
    swizzled = bool(first.optimize_for_gemm and first.with_rht and fused)
    held = []  # setup_stochastic_rounding_rng_states_helper and the scheduler's counter
    if first.stochastic_rounding:
        held.append(plain([2 * count], torch.int64, device))
    if first.with_rht and fused:
        held.append(plain([1], torch.int32, device))
    elif first.with_rht:
        for quantizer, shape in zip(quantizers, shapes, strict=True):
            run_quantize(quantizer, device, shape, source.dtype)
    del held
    return [
        NVFP4TensorStorage(
            **{name: tensors[i] for name, tensors in buffers.items()},
            **_nvfp4_kind(quantizer, swizzled),
            fake_dtype=source.dtype,
        )
        for i, quantizer in enumerate(quantizers)
    ]


@TABLE.kernel("extensions/allocate.cpp bulk_allocate")
def bulk_allocate(
    shapes: Sequence[Shape],
    dtypes: Sequence[torch.dtype],
    device: Any = None,
    alignments: Sequence[int] | None = None,
) -> list[torch.Tensor]:
    """Views of one buffer: offsets rounded up to each alignment, and the largest alignment added once as padding."""
    if not shapes:
        return []
    device = device or "cuda"
    alignments = alignments or [dtype.itemsize for dtype in dtypes]
    offsets: list[int] = []
    size = 0
    for shape, dtype, alignment in zip(shapes, dtypes, alignments, strict=True):
        offset = round_up(size, alignment)
        offsets.append(offset)
        size = offset + math.prod(shape) * dtype.itemsize
    if max(alignments) > 1:
        size += max(alignments)
    base = plain([size], torch.uint8, device)
    views = []
    for shape, dtype, offset in zip(shapes, dtypes, offsets, strict=True):
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes == 0:
            views.append(plain(shape, dtype, device))
        else:
            views.append(base[offset : offset + nbytes].view(dtype).view(list(shape)))
    return views


@TABLE.kernel("extensions/transpose.cpp fp8_transpose")
def fp8_transpose(
    tensor: torch.Tensor, otype: Any, out: torch.Tensor | None = None
) -> torch.Tensor:
    if out is not None:
        return out
    rows, columns = matrix_dims(list(tensor.size()))
    return plain([columns, rows], torch.uint8, tensor.device)


@TABLE.kernel("extensions/transpose.cpp nvfp4_data_transpose")
def nvfp4_data_transpose(input: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
    """Two values a byte, along the last dimension of either."""
    if output is not None:
        return output
    rows, bytes_ = matrix_dims(list(input.size()))
    return plain([2 * bytes_, rows // 2], torch.uint8, input.device)


@TABLE.kernel("extensions/transpose.cpp swap_first_dims")
def swap_first_dims(tensor: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    source = tensor.contiguous()
    if out is not None:
        return out
    first, second, *rest = source.shape
    return plain([second, first, *rest], source.dtype, source.device)


@TABLE.kernel("extensions/recipe.cpp compute_amax")
def compute_amax(tensor: torch.Tensor, amax: torch.Tensor) -> None:
    tensor.contiguous()


TABLE.no_allocation(
    "extensions/{recipe,fp8_partial_cast}.cpp",
    "fused_amax_and_scale_update_after_reduction",
    "fp8_block_scaling_compute_partial_amax",
    "fp8_block_scaling_partial_cast",
    "mxfp8_scaling_compute_partial_amax",
    "mxfp8_scaling_partial_cast",
    "nvfp4_2d_multi_tensor_transpose",
    "nvfp4_2d_scale_transpose",
    "nvfp4_compute_global_scale",
    "nvfp4_multi_tensor_compute_partial_amax",
    "nvfp4_multi_tensor_2d_partial_cast",
    "nvfp4_multi_tensor_fused_scale",
)


@TABLE.kernel("extensions/bias.cpp bgrad_quantize")
def bgrad_quantize(grad_output: torch.Tensor, quantizer: Any) -> list[Any]:
    grad = grad_output.contiguous()
    bias_grad = plain([grad.shape[-1]], grad.dtype, grad.device)
    if quantizer is None:
        torch.sum(grad.reshape(-1, grad.shape[-1]), 0, out=bias_grad)
        return [bias_grad, grad]
    grad_input = create(quantizer, list(grad.shape), grad.dtype, grad.device)
    fused = kind_of(quantizer) == MXFP8 or (
        kind_of(quantizer) == DELAYED
        and (
            non_tn_fp8_gemm_supported() or (quantizer.rowwise_usage and quantizer.columnwise_usage)
        )
    )
    if fused:
        bias_workspace(list(grad.shape), grad.device)
    else:
        torch.sum(grad.reshape(-1, grad.shape[-1]), 0, out=bias_grad)
        run_quantize(quantizer, grad.device, list(grad.shape), grad.dtype)
    return [bias_grad, grad_input]


def bias_workspace(shape: Shape, device: Any) -> None:
    """Partial sums of the fused cast + bias gradient: one fp32 row for each tile of rows.

    common/cast (quantize_transpose.cuh: 64 to 128 rows a tile on Hopper; mxfp8: 64 rows). Taken as 64, the larger.
    """
    rows, columns = matrix_dims(shape)
    plain([ceil_div(rows, 64), columns], torch.float32, device)
