"""Where autograd works in place on plain tensors and makes a new tensor for tensor subclasses.

The engine adds gradients of one tensor in place when nothing else holds them (torch/csrc/autograd/input_buffer.cpp, accumulate), and the
backward formulas of indexing, gather, scatter, topk and others fill their zeros in place (torch/csrc/autograd/FunctionsManual.cpp).
Both ask `isTensorSubclassLike`, and a FakeTensor is a subclass, so under fake tensors every residual connection would cost one
gradient more than on a GPU. Here the operator that autograd falls back to is recognised (called by the engine itself, on a tensor that
only it holds) and done in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
import torch.autograd.graph as graph
from torch._subclasses.fake_tensor import FakeTensor

from memtracker_sidecar.recorder import StorageRecorder

aten = torch.ops.aten

_IN_PLACE = {
    aten.index_put.default: aten.index_put_.default,
    aten._unsafe_index_put.default: aten.index_put_.default,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.index_add.default: aten.index_add_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}


class GradientAccumulation:
    """The in-place decisions of autograd for one run."""

    def __init__(self, recorder: StorageRecorder) -> None:
        self._recorder = recorder
        original = getattr(graph._engine_run_backward, "__wrapped__", graph._engine_run_backward)
        self._engine: CodeType = original.__code__
        self._alone: tuple[int, int] | None = None
        self._seen: list[tuple[int, int]] | None = None

    def install(self) -> None:
        """Registers with the recorder, before other policies on the same operators."""
        policies = self._recorder.policies
        policies[aten.add.Tensor] = self._add
        for func, in_place in _IN_PLACE.items():
            policies[func] = self._make(in_place, policies.get(func))

    def calibrate(self) -> None:
        """Learns how many references the dispatcher adds: runs a backward whose two gradients nothing else holds.

        Called with the modes of the run active.
        """
        if self._alone is not None:
            return
        self._seen = []
        with self._recorder.paused():
            leaf = torch.empty(2, device="cuda", requires_grad=True)
            inner = leaf * 1
            (inner * 2 + inner.sin()).sum().backward()
        seen, self._seen = self._seen, None
        if seen:
            self._alone = min(seen)

    def _references(self, tensor: torch.Tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()
        counted: Any = tensor
        return counted._use_count(), torch._C._storage_Use_Count(storage._cdata)

    def _held_alone(self, tensor: Any, extra: int = 0) -> bool:
        """Whether nothing but the caller holds a tensor; `extra` more references may come from passing it."""
        if self._alone is None or type(tensor) is not FakeTensor:
            return False
        uses, storage_uses = self._references(tensor)
        return (
            uses <= self._alone[0] + extra
            and storage_uses == self._alone[1]
            and (
                tensor.is_contiguous()
                or torch._prims_common.is_non_overlapping_and_dense_or_false(tensor)
            )
        )

    def _called_by_engine(self) -> bool:
        """Whether autograd's C++ code called the operator: no Python lies between the engine and the dispatcher."""
        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            return False
        frame = sys._getframe(2)
        for _ in range(8):
            if frame is None:
                return False
            code = frame.f_code
            if code is self._engine:
                return True
            if "/torch/" in code.co_filename:
                # torch._disable_dynamo wraps __torch_dispatch__ in two frames
                if code.co_name not in ("inner", "_fn"):
                    return False
            elif code.co_name not in ("_dispatch", "__torch_dispatch__", "_add", "policy"):
                return False
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def _add(self, func: Any, args: Any, kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() == -1 or len(args) != 2 or kwargs:
            return NotImplemented
        old, new = args
        if type(old) is not FakeTensor or type(new) is not FakeTensor:
            return NotImplemented
        if not self._called_by_engine():
            return NotImplemented
        if self._seen is not None:
            self._seen += [self._references(old), self._references(new)]
            return NotImplemented
        if old.shape != new.shape or old.dtype != new.dtype:
            return NotImplemented
        for kept, other in ((old, new), (new, old)):
            if self._held_alone(kept):
                return aten.add_.Tensor(kept, other)
        return NotImplemented

    def _make(self, in_place: Any, otherwise: Callable[..., Any] | None) -> Callable[..., Any]:
        def policy(func: Any, args: Any, kwargs: Any) -> Any:
            if (
                torch._C._current_graph_task_id() != -1
                and self._held_alone(args[0], extra=1)
                and self._called_by_engine()
            ):
                with self._recorder.inside_policy():
                    return in_place(*args, **kwargs)
            return NotImplemented if otherwise is None else otherwise(func, args, kwargs)

        return policy
