"""Labels: which part of Megatron's step is running, and the instant at which Megatron itself reads its memory statistics."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memtracker_sidecar import protocol
from memtracker_sidecar.adapter_api import AdapterContext, InterfaceChanged

SPANS: tuple[tuple[str, str, str], ...] = (
    ("megatron.training.training", "finalize_model_grads", "finalize_model_grads"),
    ("megatron.training.training", "evaluate", "evaluation"),
    (
        "megatron.core.distributed.distributed_data_parallel",
        "DistributedDataParallel.__init__",
        "gradient_buffers",
    ),
    (
        "megatron.core.distributed.distributed_data_parallel",
        "DistributedDataParallel.zero_grad_buffer",
        "zero_grad",
    ),
    (
        "megatron.core.distributed.param_and_grad_buffer",
        "_ParamAndGradBucketGroup.start_param_sync",
        "param_all_gather",
    ),
    (
        "megatron.core.distributed.param_and_grad_buffer",
        "_ParamAndGradBucketGroup.finish_param_sync",
        "param_all_gather_wait",
    ),
    (
        "megatron.core.distributed.param_and_grad_buffer",
        "_ParamAndGradBucketGroup.start_grad_sync",
        "grad_reduce_scatter",
    ),
    (
        "megatron.core.distributed.param_and_grad_buffer",
        "_ParamAndGradBucketGroup.finish_grad_sync",
        "grad_reduce_scatter_wait",
    ),
    ("megatron.core.pipeline_parallel.p2p_communication", "P2PCommunicator._communicate", "p2p"),
    (
        "megatron.core.optimizer.optimizer",
        "MixedPrecisionOptimizer.prepare_grads",
        "optimizer/prepare_grads",
    ),
    (
        "megatron.core.optimizer.optimizer",
        "MixedPrecisionOptimizer.step_with_ready_grads",
        "optimizer/update",
    ),
    (
        "megatron.core.optimizer.optimizer",
        "MegatronOptimizer.clip_grad_norm",
        "optimizer/clip_grad_norm",
    ),
    ("megatron.core.optimizer.optimizer", "MegatronOptimizer.count_zeros", "optimizer/count_zeros"),
)


class Steps:
    """Counts steps and micro-batches, and ends the run."""

    def __init__(self, context: AdapterContext) -> None:
        self.context = context
        self.step = 0
        self.forward = 0
        self.backward = 0
        self._open: int | None = None

    def begin(self) -> None:
        self.step += 1
        self.forward = self.backward = 0
        self._open = self.context.phases.begin("step", step=self.step)

    def end(self) -> None:
        if self._open is not None:
            self.context.phases.end(self._open)
            self._open = None


def install(
    context: AdapterContext, register: Callable[[Any, Any], None], read_memory: bool = True
) -> Steps:
    """Puts the phases on. `register(model_chunks, optimizer)` is called once they exist.

    With `read_memory` the instant at which Megatron reads its memory statistics (`--log-memory-to-tensorboard`) is marked;
    without it (a real run) its log is left as it is.
    """
    steps = Steps(context)
    for module, attribute, name in SPANS:
        try:
            context.wrap_phase(module, attribute, name)
        except InterfaceChanged as error:
            context.uncovered(
                "feature", f"{module}.{attribute}", detail=str(error), assumption=f"no phase {name}"
            )
    _setup(context, register)
    _step(context, steps)
    _micro_batches(context, steps)
    if read_memory:
        _memory_log(context, steps)
    else:
        _end_of_step(context, steps)
    return steps


def _setup(context: AdapterContext, register: Callable[[Any, Any], None]) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def setup(*arguments: Any, **options: Any) -> Any:
            with context.phase("setup_model_and_optimizer"):
                result = original(*arguments, **options)
            register(result[0], result[1])
            return result

        return setup

    context.replace(
        "megatron.training.training",
        "setup_model_and_optimizer",
        make,
        "phase setup_model_and_optimizer",
    )


def _step(context: AdapterContext, steps: Steps) -> None:
    def in_phase(schedule: Callable[..., Any]) -> Callable[..., Any]:
        def forward_backward(*arguments: Any, **keywords: Any) -> Any:
            with context.phase("forward_backward", step=steps.step):
                return schedule(*arguments, **keywords)

        return forward_backward

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train_step(
            forward_step: Any,
            data: Any,
            model: Any,
            optimizer: Any,
            scheduler: Any,
            config: Any,
            *rest: Any,
            **options: Any,
        ) -> Any:
            if optimizer is not None and not hasattr(optimizer, "_memtracker_step"):
                optimizer._memtracker_step = update = optimizer.step

                @functools.wraps(update)
                def optimizer_step(*arguments: Any, **keywords: Any) -> Any:
                    context.modules.in_optimizer += 1
                    try:
                        with context.phase("optimizer", step=steps.step):
                            return update(*arguments, **keywords)
                    finally:
                        context.modules.in_optimizer -= 1

                optimizer.step = optimizer_step
            steps.begin()
            leading = (forward_step, data, model, optimizer, scheduler, config)
            if rest and callable(rest[0]):
                return original(*leading, in_phase(rest[0]), *rest[1:], **options)
            # Before October 2025 a step asked for its schedule itself.
            with _schedules(in_phase):
                return original(*leading, *rest, **options)

        return train_step

    context.replace(
        "megatron.training.training",
        "train_step",
        make,
        "phases step, forward_backward and optimizer",
    )


@contextlib.contextmanager
def _schedules(changed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """While it lasts, training code gets its schedules changed."""
    import megatron.training.training as training

    original = training.get_forward_backward_func
    training.get_forward_backward_func = lambda *arguments, **options: changed(
        original(*arguments, **options)
    )
    try:
        yield
    finally:
        training.get_forward_backward_func = original


def _micro_batches(context: AdapterContext, steps: Steps) -> None:
    def forward(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward_step(*arguments: Any, **options: Any) -> Any:
            number, steps.forward = steps.forward, steps.forward + 1
            with context.phase("forward", micro_batch=number):
                return original(*arguments, **options)

        return forward_step

    def backward(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward_step(*arguments: Any, **options: Any) -> Any:
            number, steps.backward = steps.backward, steps.backward + 1
            # With pipeline stages Megatron calls the C++ engine itself (schedules.custom_backward), past PyTorch's own functions.
            context.owners.backward_starts()
            try:
                with context.phase("backward", micro_batch=number):
                    return original(*arguments, **options)
            finally:
                context.owners.backward_ends()

        return backward_step

    module = "megatron.core.pipeline_parallel.schedules"
    context.replace(module, "forward_step", forward, "phase forward of a micro-batch")
    context.replace(module, "backward_step", backward, "phase backward of a micro-batch")


class _Silent:
    """Stands for a TensorBoard writer: Megatron reads its memory statistics only when it has one to write them to."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_options: None


def _memory_log(context: AdapterContext, steps: Steps) -> None:
    """`training_log` reads `torch.cuda.memory_stats()`; a phase of no length marks the instant, and the step ends there."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def training_log(*arguments: Any, **options: Any) -> Any:
            import megatron.training.training as training

            read = torch.cuda.memory_stats
            writer = training.get_tensorboard_writer

            def memory_stats(*values: Any, **names: Any) -> Any:
                with context.phase("memory_log", step=steps.step):
                    return read(*values, **names)

            training.get_tensorboard_writer = _Silent
            torch.cuda.memory_stats = memory_stats
            try:
                return original(*arguments, **options)
            finally:
                torch.cuda.memory_stats = read
                training.get_tensorboard_writer = writer
                steps.end()
                context.step_done()

        return training_log

    context.replace(
        "megatron.training.training",
        "training_log",
        make,
        "marks where Megatron reads its memory statistics",
    )


def _end_of_step(context: AdapterContext, steps: Steps) -> None:
    """A step ends when it has been logged."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def training_log(*arguments: Any, **options: Any) -> Any:
            try:
                return original(*arguments, **options)
            finally:
                steps.end()
                context.step_done()

        return training_log

    context.replace("megatron.training.training", "training_log", make, "marks where a step ends")


def claim_buffers(context: AdapterContext, model: Any, optimizer: Any) -> None:
    """Owners that only Megatron knows: gradient and parameter buffers, main parameters."""
    for chunk in model:
        for buffer in (
            [*getattr(chunk, "buffers", [])]
            if isinstance(getattr(chunk, "buffers", None), list)
            else []
        ):
            _claim_buffer(context, buffer)
        for buffer in getattr(chunk, "expert_parallel_buffers", []):
            _claim_buffer(context, buffer)
    for number, part in enumerate(getattr(optimizer, "chained_optimizers", None) or [optimizer]):
        for name in ("shard_fp32_from_float16_groups", "fp32_from_float16_groups"):
            for group in getattr(part, name, None) or []:
                for index, tensor in enumerate(
                    group if isinstance(group, (list, tuple)) else [group]
                ):
                    if isinstance(tensor, torch.Tensor):
                        context.owners.claim(
                            tensor, protocol.OWNER_MAIN_PARAMETER, f"optimizer{number}.main.{index}"
                        )


def _claim_buffer(context: AdapterContext, buffer: Any) -> None:
    if isinstance(getattr(buffer, "grad_data", None), torch.Tensor):
        context.owners.claim(buffer.grad_data, protocol.OWNER_GRADIENT_BUCKET, "grad_data")
    if isinstance(getattr(buffer, "param_data", None), torch.Tensor):
        context.owners.claim(buffer.param_data, protocol.OWNER_PARAMETER, "param_data")
