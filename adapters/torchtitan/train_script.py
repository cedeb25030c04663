"""TorchTitan of 2024: `train.py` at the root of the checkout, one function `main(job_config)`.

There is no trainer object to hold on to. `main` takes everything it builds from its own module's names, so the data
loader and the tokenizer are replaced there; a step begins where `main` runs its garbage collector (torchtitan/utils.py,
`GarbageCollection.run(step)`, the first call of the loop) and ends at the next one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from memtracker_sidecar.adapter_api import AdapterContext

from .changes import Changes, apply
from .interface import Need
from .phases import COMMON_SPANS, PhaseRecorder, Span, span_forward
from .stage_boundary import Boundary, dtype_until_0_2
from .synthetic_data import LLAMA3_VOCABULARY, BatchShape, SyntheticTokenizer, token_batches

NAME = "train script"
MARKS = ("train.py", "torchtitan/parallelisms", "torchtitan/config_manager.py")

NEEDS = (
    Need("train", "main", "runs the job"),
    Need("train", "build_tokenizer", "needs no tokenizer file"),
    Need("train", "build_hf_data_loader", "gives synthetic tokens"),
    Need("torchtitan.config_manager", "JobConfig.parse_args", "parses the arguments"),
    Need("torchtitan.utils", "GarbageCollection.run", "tells where a step begins"),
    Need("train", "build_optimizers", "is given the model, which is registered then"),
)

TRAINER_SPANS: tuple[Span, ...] = ()

SPANS = (
    *COMMON_SPANS,
    Span("torchtitan.metrics", "DeviceMemoryMonitor.get_peak_stats", "memory_log", required=False),
    Span("torchtitan.utils", "clip_grad_norm_", "clip_gradients"),
    Span("torchtitan.optimizer", "OptimizersContainer.step", "optimizer"),
    Span("torchtitan.optimizer", "OptimizersContainer.zero_grad", "zero_grad"),
)


@dataclass
class Job:
    config: Any
    steps: _Steps | None = field(default=None)

    def build(self) -> None:
        return None

    def model_parts(self, trainer: Any) -> list[torch.nn.Module]:
        del trainer
        return []

    def train(self, trainer: Any) -> None:
        del trainer
        assert self.steps is not None, "mark_steps() comes before train()"
        self.steps.begin("init")
        try:
            importlib.import_module("train").main(self.config)
        finally:
            self.steps.end()

    def close(self, trainer: Any) -> None:
        del trainer
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()

    def document_length(self) -> int:
        return int(self.config.training.seq_len)

    def boundary(self) -> Boundary:
        """(micro-batch, sequence, width); the sequence is divided by context and tensor (sequence) parallelism."""
        training, experimental = self.config.training, self.config.experimental
        stages = experimental.pipeline_parallel_degree
        micro_batches = experimental.pipeline_parallel_microbatches or stages
        divisor = experimental.context_parallel_degree * training.tensor_parallel_degree
        models = importlib.import_module("torchtitan.models").models_config
        width = int(models[self.config.model.name][self.config.model.flavor].dim)
        return Boundary.of(
            (training.batch_size // micro_batches, training.seq_len // divisor, width),
            dtype_until_0_2(
                training.mixed_precision_param, stages * training.tensor_parallel_degree
            ),
        )


class _Steps:
    """Turns calls of the collector into `init` and `step` phases."""

    def __init__(self, recorder: PhaseRecorder) -> None:
        self._recorder = recorder
        self._open: Any = None

    def begin(self, name: str, **labels: int) -> None:
        self.end()
        self._open = self._recorder.phase(name, **labels)
        self._open.__enter__()

    def end(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def parse(arguments: list[str]) -> Job:
    config = importlib.import_module("torchtitan.config_manager").JobConfig()
    config.parse_args(arguments)
    return Job(config)


def edit(job: Job, changes: Changes) -> None:
    """Input and output off, data and tokenizer replaced."""
    config = job.config
    apply(config, changes)
    script: Any = importlib.import_module("train")
    if not changes.tokenizer_files:
        changes.replacements.set(
            script,
            "build_tokenizer",
            lambda *_, **__: SyntheticTokenizer(LLAMA3_VOCABULARY),
            "the tokenizer's file is not there",
        )
    if changes.synthetic:
        length = changes.document_length or int(config.training.seq_len)

        def loader(
            dataset: Any,
            path: Any,
            tokenizer: Any,
            batch_size: int,
            seq_len: int,
            *_: Any,
            **__: Any,
        ) -> Iterator[Any]:
            del dataset, path, tokenizer
            shape = BatchShape((batch_size, seq_len), length)
            return (
                (inputs["input"], labels)
                for inputs, labels in token_batches(shape, with_positions=False)
            )

        changes.replacements.set(script, "build_hf_data_loader", loader, "builds synthetic batches")


def assumed_vocabulary(_job: Job) -> int:
    """What a model gets that takes its vocabulary from a tokenizer whose files are not there; all of 2024 do."""
    return LLAMA3_VOCABULARY


def mark_steps(context: AdapterContext, job: Job) -> None:
    """Opens `init`, and `step` with its number at each call of the collector."""
    job.steps = steps = _Steps(context.phases)
    collection = importlib.import_module("torchtitan.utils").GarbageCollection
    run = collection.run

    def run_and_mark(self: Any, step: int) -> None:
        steps.begin("step", step=step)
        context.steps_done = step - 1
        context.progress(f"step {step} of {context.spec.steps}")
        run(self, step)

    context.replacements.set(collection, "run", run_and_mark, "tells where a step begins")
    script = importlib.import_module("train")
    build_optimizers = script.build_optimizers

    def register_and_build(
        model_parts: list[torch.nn.Module], *arguments: Any, **keywords: Any
    ) -> Any:
        for part in model_parts:
            context.register_model(part)
        if len(model_parts) == 1:
            span_forward(context.phases, model_parts[0])
        return build_optimizers(model_parts, *arguments, **keywords)

    context.replacements.set(script, "build_optimizers", register_and_build, "is given the model")


def facts(job: Job) -> dict[str, str | int | float | bool | None]:
    return {
        f"{section}.{name}": value
        for section, values in job.config.to_dict().items()
        for name, value in values.items()
        if value is None or isinstance(value, (str, int, float, bool))
    }
