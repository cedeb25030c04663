"""Gradients of look-ups: embedding and indexing sort their indices and sum in segments."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from memtracker_sidecar.workspace_rules import Call, Workspace, WorkspaceRules, argument

_EMBEDDING = "PyTorch, aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu"
_INDEX_PUT = "PyTorch, aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel"
_UNSORTED_INDICES = (
    3072  # Embedding.cu, embedding_dense_backward_cuda: fewer are summed without sorting
)
_ROWS_A_THREAD = 10  # EmbeddingBackwardKernel.cu, NROWS_PER_THREAD


def _embedding(call: Call) -> Iterable[Workspace]:
    gradient, indices = call.args[0], call.args[1]
    weights = int(argument(call, "num_weights"))
    count, item = indices.numel(), indices.element_size()
    padding = int(argument(call, "padding_idx", -1))
    if count <= _UNSORTED_INDICES and padding < 0:
        return
    each = count * item
    yield Workspace(each, "embedding indices, sorted", "before", _EMBEDDING)
    yield Workspace(each, "embedding indices, original", "before", _EMBEDDING)
    # Counting indices and the double buffers of the radix sort; gone before the gradient is made.
    yield Workspace(3 * each, "embedding sort", "before", _EMBEDDING, transient=True)
    segments = min(count, weights)
    partial = count // _ROWS_A_THREAD + segments
    yield Workspace(each, "embedding segment offsets", "after", _EMBEDDING)
    yield Workspace(2 * segments * item, "embedding partials of segments", "after", _EMBEDDING)
    yield Workspace(partial * item, "embedding partial segment offsets", "after", _EMBEDDING)
    accumulator = max(4, gradient.element_size())
    size = partial * gradient.shape[-1] * accumulator
    yield Workspace(size, "embedding gradient of segments", "after", _EMBEDDING)


def _index_put(call: Call) -> Iterable[Workspace]:
    if not argument(call, "accumulate", False):
        return ()
    indices = [index for index in call.args[1] if isinstance(index, torch.Tensor)]
    if not indices:
        return ()
    count = 1
    for size in torch.broadcast_shapes(*(index.shape for index in indices)):
        count *= size
    each = count * 8
    return (
        # The linear index, its sorted copy, the original positions, and the keys and values of the radix sort.
        Workspace(4 * each, "index_put linear and sorted indices", "after", _INDEX_PUT),
        Workspace(2 * each, "index_put sort", "after", _INDEX_PUT),
    )


def register(rules: WorkspaceRules) -> None:
    rules.add(("aten::embedding_dense_backward",), _embedding)
    rules.add(
        (
            "aten::index_put",
            "aten::index_put_",
            "aten::_index_put_impl_",
            "aten::_unsafe_index_put",
        ),
        _index_put,
    )
