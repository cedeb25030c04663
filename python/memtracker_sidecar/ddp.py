"""DistributedDataParallel's reducer, in Python.

PyTorch's is C++ (torch/csrc/distributed/c10d/reducer.cpp) and times itself with CUDA events, which need a driver. This one allocates
what that one allocates and when: flat buckets at construction, new ones in the order of the gradients before the second
iteration, one asynchronous all-reduce a bucket as its last gradient arrives, and gradients that stay beside the bucket or become
views of it (`gradient_as_bucket_view`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from memtracker_sidecar import protocol
from memtracker_sidecar.owners import Owners
from memtracker_sidecar.replacements import Replacements


class _Bucket:
    def __init__(self, parameters: Sequence[torch.Tensor], indices: Sequence[int]) -> None:
        self.indices = tuple(indices)
        first = parameters[self.indices[0]]
        sizes = [parameters[index].numel() for index in self.indices]
        self.gradients = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self.views: dict[int, torch.Tensor] = {}
        offset = 0
        for index, size in zip(self.indices, sizes, strict=True):
            parameter = parameters[index]
            self.views[index] = self.gradients[offset : offset + size].view(parameter.shape)
            offset += size
        self.pending = len(self.indices)
        self.work: Any = None


class Reducer:
    """Takes the place of torch.distributed.Reducer."""

    owners: Owners

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        bucket_indices: Sequence[Sequence[int]],
        _size_limits: Sequence[int],
        process_group: Any,
        _expect_sparse: Sequence[bool] = (),
        bucket_bytes_cap: int = 25 * 2**20,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        _names: Any = None,
        first_bucket_bytes_cap: int = 2**20,
        *more: Any,
    ) -> None:
        self._parameters = list(parameters)
        self._group = process_group
        self._find_unused = find_unused_parameters
        self._as_view = gradient_as_bucket_view
        limits = next((value for value in more if isinstance(value, (list, tuple))), None)
        self._limits = list(limits) if limits else [first_bucket_bytes_cap, bucket_bytes_cap]
        self._static_graph = False
        self._expecting = False
        self._finished = 0
        self._rebuilt = False
        self._order: list[int] = []
        self._hook: tuple[Any, Any] | None = None
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}
        self._make_buckets(bucket_indices)
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._make_hook(index))
            for index, parameter in enumerate(self._parameters)
        ]

    def _make_buckets(self, indices: Sequence[Sequence[int]]) -> None:
        self._buckets.clear()
        self._bucket_of.clear()
        for number, members in enumerate(indices):
            bucket = _Bucket(self._parameters, members)
            self.owners.claim(
                bucket.gradients, protocol.OWNER_GRADIENT_BUCKET, f"DDP bucket {number}"
            )
            self._buckets.append(bucket)
            self._bucket_of |= dict.fromkeys(bucket.indices, bucket)

    def _make_hook(self, index: int) -> Any:
        def gradient_is_ready(_parameter: torch.Tensor) -> None:
            self._autograd_hook(index)

        return gradient_is_ready

    # -- what DistributedDataParallel calls

    def prepare_for_forward(self) -> None:
        return

    def prepare_for_backward(self, _outputs: Sequence[torch.Tensor]) -> None:
        self._expecting = True
        self._finished = 0
        for bucket in self._buckets:
            bucket.pending = len(bucket.indices)
            bucket.work = None

    def _autograd_hook(self, index: int) -> None:
        if not self._expecting:
            return  # no_sync(): gradients accumulate, nothing is reduced
        if not self._rebuilt:
            self._order.append(index)
        bucket = self._bucket_of[index]
        parameter, view = self._parameters[index], bucket.views[index]
        with torch.no_grad():
            gradient = parameter.grad
            if gradient is not None:
                view.copy_(gradient)  # reducer.cpp divides by the world size as it copies
                if self._as_view:
                    parameter.grad = view
        bucket.pending -= 1
        if bucket.pending == 0:
            self._reduce(bucket)

    def _reduce(self, bucket: _Bucket) -> None:
        if self._hook is None:
            bucket.work = dist.all_reduce(bucket.gradients, group=self._group, async_op=True)
        else:
            state, hook = self._hook
            hook(state, _GradBucket(bucket, self._parameters, bucket is self._buckets[-1]))
        self._finished += 1
        if self._finished == len(self._buckets):
            torch.autograd.Variable._execution_engine.queue_callback(self._finalize)

    def _finalize(self) -> None:
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None
            if not self._as_view:
                with torch.no_grad():
                    for index in bucket.indices:
                        gradient = self._parameters[index].grad
                        if gradient is not None:
                            gradient.copy_(bucket.views[index])
        self._expecting = False

    def _rebuild_buckets(self) -> bool:
        if self._rebuilt or not self._order or (self._find_unused and not self._static_graph):
            return False
        ordered = [self._parameters[index] for index in self._order]
        sparse = [False] * len(ordered)
        groups, _ = dist._compute_bucket_assignment_by_size(
            ordered, self._limits, sparse, list(self._order)
        )
        self._rebuilt = True
        self._make_buckets(groups)
        return True

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        self._hook = (state, hook)

    def _set_static_graph(self) -> None:
        self._static_graph = True

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _get_zeros_like_grad_buckets(self) -> list[Any]:
        return [_GradBucket(bucket, self._parameters, False) for bucket in self._buckets]

    def _get_local_used_map(self) -> torch.Tensor:
        return torch.ones(len(self._parameters), dtype=torch.int32, device="cuda")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: None


class _GradBucket:
    """What a communication hook is given."""

    def __init__(self, bucket: _Bucket, parameters: Sequence[torch.Tensor], last: bool) -> None:
        self._bucket = bucket
        self._parameters = parameters
        self._last = last

    def buffer(self) -> torch.Tensor:
        return self._bucket.gradients

    def gradients(self) -> list[torch.Tensor]:
        return list(self._bucket.views.values())

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameters[index] for index in self._bucket.indices]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return self._last

    def set_buffer(self, buffer: torch.Tensor) -> None:
        self._bucket.gradients = buffer


class _Logger:
    """Takes the place of torch.distributed.Logger."""

    def __init__(self, _reducer: Any) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_arguments, **_options: None


def install(replacements: Replacements, owners: Owners) -> None:
    """Replaces the reducer of DistributedDataParallel."""
    reducer = type("Reducer", (Reducer,), {"owners": owners})
    reason = "the C++ reducer times itself with CUDA events, which need a driver"
    replacements.set(dist, "Reducer", reducer, reason)
    replacements.set(dist, "Logger", _Logger, reason)
    replacements.set(
        dist,
        "_register_comm_hook",
        lambda made, state, hook: made.register_comm_hook(state, hook),
        reason,
    )
    replacements.set(dist, "_register_builtin_comm_hook", lambda *_: None, reason)
    replacements.set(
        dist,
        "_verify_params_across_processes",
        lambda *_arguments, **_options: None,
        "compares shapes with the other ranks by value",
    )
