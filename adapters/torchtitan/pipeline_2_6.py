"""Pipeline stages of PyTorch 2.6: what they kept from one step to the next (torch/distributed/pipelining)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.adapter_api import AdapterContext

_STAGE = "torch.distributed.pipelining.stage"


def stages_keep_their_outputs(context: AdapterContext) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward_one_chunk(stage: Any, *arguments: Any, **keywords: Any) -> Any:
            output = original(stage, *arguments, **keywords)
            if not stage.is_last:
                stage.output_chunks.append(output)
            return output

        return forward_one_chunk

    context.replace(
        _STAGE,
        "_PipelineStageBase.forward_one_chunk",
        make,
        "every stage kept the outputs of its micro-batches, as the last one still does",
    )


def stages_keep_gradients_of_inputs(context: AdapterContext) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def stage_backward(outputs: Any, gradients: Any, inputs: Any, *arguments: Any) -> Any:
            of_inputs = original(outputs, gradients, inputs, *arguments)
            for value, gradient in zip(inputs, of_inputs, strict=True):
                if isinstance(value, torch.Tensor):
                    value.grad = gradient
            return of_inputs

        return stage_backward

    context.replace(
        _STAGE,
        "stage_backward",
        make,
        "a stage's inputs kept their gradients until the next step",
    )


def stages_leave_the_last_reduction_open(context: AdapterContext) -> None:
    reducing = [0]

    def skipped(end: Callable[[Any], None]) -> Callable[[Any], None]:
        def unless_a_stage_reduces(state: Any) -> None:
            if not reducing[0]:
                end(state)

        return unless_a_stage_reduces

    def make(reduce: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def without_its_end(stage: Any, grad_scale_factor: int) -> None:
            del grad_scale_factor
            reducing[0] += 1
            try:
                reduce(stage, 1)
            finally:
                reducing[0] -= 1

        return without_its_end

    context.replace(
        "torch.distributed.fsdp._fully_shard._fsdp_state",
        "FSDPState._root_post_backward_final_callback",
        skipped,
        "was not called for a pipeline stage",
    )
    context.replace(
        _STAGE,
        "_PipelineStageBase.perform_reduce_grad",
        make,
        "nothing waited for the last reduce-scatter, whose input stayed until the next step's first",
    )
