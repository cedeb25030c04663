"""What a pipeline stage receives, when the stages before it do not exist.

torch 2.14 infers the shapes at stage boundaries in the first step: each stage runs its forward on meta tensors and
sends the metadata to the next (torch/distributed/pipelining/stage.py, `_send_meta`/`_recv_meta`). In a one-rank world
nobody answers. The first stage's own inference tells what every boundary looks like when this rank holds it; any other
rank is given the boundary that the model has by construction: the hidden states of one micro-batch, divided among the
context-parallel ranks and, with sequence parallelism, the tensor-parallel ranks, in the parameters' compute dtype.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from memtracker_sidecar.replacements import Replacements

from .interface import Need

_STAGE = "torch.distributed.pipelining.stage"
NEEDS = (
    Need(_STAGE, "PipelineStage._recv_meta", "answers for the stages of other ranks"),
    Need(_STAGE, "PipelineStage._send_meta", "keeps what this rank would send"),
    Need(
        _STAGE,
        "InferenceMode",
        "keeps the schedule from exchanging shapes over a fake process group",
    ),
    Need(
        "torch.distributed.pipelining.schedules",
        "_PipelineSchedule",
        "keeps the schedule from exchanging shapes",
    ),
)


_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Boundary:
    """Hidden states at a stage boundary: sizes of the local tensor, and dtype."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, sizes: tuple[int, ...], dtype: str) -> Boundary:
        """`dtype` as `training.mixed_precision_param` has it."""
        return cls(sizes, _DTYPES[str(dtype)])

    def tensor(self) -> torch.Tensor:
        return torch.empty(self.sizes, device="cuda", dtype=self.dtype, requires_grad=True)


def dtype_until_0_2(mixed_precision_param: str, model_ranks: int) -> str:
    """Compute dtype of pipeline stages up to TorchTitan 0.2, where FSDP alone brings mixed precision: stages without data and context
    parallelism stay in float32 (torchtitan/distributed/utils.py, `maybe_enable_amp`).

    `model_ranks`: pipeline times tensor parallelism; what is left of the world is sharded by FSDP.
    """
    return mixed_precision_param if torch.distributed.get_world_size() > model_ranks else "float32"


def _pipelining(name: str) -> Any:
    """A private name of torch.distributed.pipelining: in stage.py or, depending on the version, in _utils.py."""
    for module in (_STAGE, "torch.distributed.pipelining._utils"):
        found = getattr(importlib.import_module(module), name, None)
        if found is not None:
            return found
    raise AttributeError(f"torch.distributed.pipelining has no {name}")


def install(replacements: Replacements, boundary: Callable[[], Boundary]) -> None:
    """Answers metadata exchanges for the stages of other ranks. `boundary` is asked on first need."""
    stage_module = importlib.import_module(_STAGE)
    schedules = importlib.import_module("torch.distributed.pipelining.schedules")
    forward_meta = _pipelining("_StageForwardMeta")
    backward_meta = _pipelining("_StageBackwardMeta")
    extract = _pipelining("extract_tensor_metas")
    derive_gradients = _pipelining("_derive_grad_metas")
    sent: list[Any] = []

    def send(self: Any, meta: Any, destination: int) -> None:
        del self, destination
        if isinstance(meta, forward_meta) and not sent:
            sent.append(meta.forward_metas)

    def receive(self: Any, source: int) -> Any:
        if source < self.stage_index:
            if not sent:
                sent.append(extract((boundary().tensor(),)))
            return forward_meta(forward_metas=sent[0])
        return backward_meta(backward_metas=derive_gradients(self._stage_meta.outputs))

    def warm_up(self: Any, stages: Any, has_backward: bool, p2p_done: bool) -> None:
        del self, has_backward, p2p_done
        for stage in stages:
            stage._inference_mode = stage_module.InferenceMode.DYNAMIC

    reason = "the other stages of the pipeline do not exist"
    replacements.set(stage_module.PipelineStage, "_send_meta", send, reason)
    replacements.set(stage_module.PipelineStage, "_recv_meta", receive, reason)
    for candidate in list(vars(schedules).values()):
        if isinstance(candidate, type) and "_warmup_p2p" in vars(candidate):
            replacements.set(candidate, "_warmup_p2p", warm_up, reason)
