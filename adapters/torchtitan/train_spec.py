"""TorchTitan 0.1 to 0.2: a TOML file and `--section.option`s make a JobConfig, a TrainSpec says how to build the model.

The run is what `torchtitan.train.main` does: parse, `Trainer(job_config)`, `train()`, `close()`. The TrainSpec's
builders of tokenizer and data loader are replaced (it is a dataclass that names its builders), nothing else of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from memtracker_sidecar.adapter_api import AdapterProblem

from .changes import Changes, apply
from .interface import Need
from .phases import (
    COMMON_SPANS,
    MicroBatchCounter,
    Span,
    step_of_trainer,
)
from .stage_boundary import Boundary, dtype_until_0_2
from .synthetic_data import (
    LLAMA3_VOCABULARY,
    Batch,
    BatchShape,
    SyntheticLoader,
    SyntheticTokenizer,
    token_batches,
)

NAME = "train spec"
MARKS = ("torchtitan/protocols/train_spec.py", "torchtitan/train.py")

NEEDS = (
    Need("torchtitan.train", "Trainer.train", "runs the job"),
    Need(
        "torchtitan.protocols.train_spec",
        "get_train_spec",
        "gets a data loader of synthetic tokens",
    ),
    Need(
        "torchtitan.protocols.train_spec",
        "TrainSpec",
        "gets a data loader of synthetic tokens",
    ),
    Need("torchtitan.tools.logging", "init_logger", "as torchtitan.train.main does"),
)

_MICRO_BATCHES = MicroBatchCounter()


def _begin_step(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, str | int]:
    _MICRO_BATCHES.restart()
    return step_of_trainer(arguments, keywords)


TRAINER_SPANS = (
    Span("torchtitan.train", "Trainer.__init__", "init"),
    Span("torchtitan.train", "Trainer.init_distributed", "distributed", required=False),
    Span("torchtitan.train", "Trainer.train_step", "step", _begin_step),
    Span(
        "torchtitan.train",
        "Trainer.forward_backward_step",
        "forward_backward",
        _MICRO_BATCHES.labels,
    ),
)

SPANS = (
    *COMMON_SPANS,
    Span(
        "torchtitan.components.metrics",
        "DeviceMemoryMonitor.get_peak_stats",
        "memory_log",
        required=False,
    ),
    Span(
        "torchtitan.components.optimizer",
        "OptimizersContainer.__init__",
        "build_optimizer",
    ),
    Span("torchtitan.components.optimizer", "OptimizersContainer.step", "optimizer"),
    Span("torchtitan.components.optimizer", "OptimizersContainer.zero_grad", "zero_grad"),
    Span("torchtitan.distributed.utils", "clip_grad_norm_", "clip_gradients"),
    Span("torchtitan.tools.utils", "GarbageCollection.run", "collect_garbage"),
    Span(
        "torchtitan.components.validate",
        "Validator.validate",
        "validation",
        required=False,
    ),
)


@dataclass(frozen=True)
class Job:
    trainer: type[Any]
    config: Any

    def build(self) -> Any:
        return self.trainer(self.config)

    def model_parts(self, trainer: Any) -> list[torch.nn.Module]:
        return list(trainer.model_parts)

    def train(self, trainer: Any) -> None:
        trainer.train()

    def close(self, trainer: Any) -> None:
        trainer.close()

    def document_length(self) -> int:
        return int(self.config.training.seq_len)

    def boundary(self) -> Boundary:
        """Hidden states (micro-batch, sequence, width) of a stage boundary."""
        training, parallelism = self.config.training, self.config.parallelism
        batch = getattr(parallelism, "pipeline_parallel_microbatch_size", 1)
        divisor = parallelism.context_parallel_degree * parallelism.tensor_parallel_degree
        spec = importlib.import_module("torchtitan.protocols.train_spec").get_train_spec(
            self.config.model.name
        )
        arguments = getattr(spec, "model_args", None) or spec.config
        width = int(arguments[self.config.model.flavor].dim)
        model_ranks = parallelism.pipeline_parallel_degree * parallelism.tensor_parallel_degree
        dtype = dtype_until_0_2(training.mixed_precision_param, model_ranks)
        return Boundary.of((batch, training.seq_len // divisor, width), dtype)


def _config_manager() -> Any:
    try:
        return importlib.import_module("torchtitan.config").ConfigManager
    except (ImportError, AttributeError):  # 0.1: torchtitan/config_manager.py
        return importlib.import_module("torchtitan.config_manager").ConfigManager


def refuse_own_trainers(config: Any) -> None:
    """A folder that brings its own configuration may bring a trainer too (flux, fault tolerance), with an entry of its own.

    Raises:
        AdapterProblem: it does.
    """
    folder = str(getattr(config.job, "custom_config_module", "") or "").rpartition(".")[0]
    if folder and importlib.util.find_spec(f"{folder}.train") is not None:
        raise AdapterProblem(
            f"this job is started with {folder}.train; only torchtitan.train is, in this generation of TorchTitan"
        )


def parse(arguments: list[str]) -> Job:
    importlib.import_module("torchtitan.tools.logging").init_logger()
    config = _config_manager()().parse_args(arguments)
    refuse_own_trainers(config)
    return Job(importlib.import_module("torchtitan.train").Trainer, config)


def edit(job: Job, changes: Changes) -> None:
    """Input and output off, data and tokenizer replaced."""
    apply(job.config, changes)
    if changes.synthetic or not changes.tokenizer_files:
        _replace_builders(job.config, changes)


def _replace_builders(config: Any, changes: Changes) -> None:
    specs = importlib.import_module("torchtitan.protocols.train_spec")
    original: Any = getattr(specs, "get_train_spec")  # noqa: B009 - the module is only known at run time

    def tokenizer(*_: Any, **__: Any) -> SyntheticTokenizer:
        return SyntheticTokenizer(_stated_vocabulary(original, config) or LLAMA3_VOCABULARY)

    def loader(*_: Any, **__: Any) -> SyntheticLoader:
        training = config.training
        batch = getattr(training, "local_batch_size", None) or training.batch_size
        shape = BatchShape(
            (int(batch), int(training.seq_len)),
            changes.document_length or int(training.seq_len),
        )
        return SyntheticLoader(lambda: _batches(shape))

    def get_train_spec(name: str) -> Any:
        builders: dict[str, Any] = {}
        if not changes.tokenizer_files:
            builders["build_tokenizer_fn"] = tokenizer
        if changes.synthetic:
            builders["build_dataloader_fn"] = loader
        return dataclasses.replace(original(name), **builders)

    modules: tuple[Any, ...] = (specs, importlib.import_module("torchtitan.train"))
    for module in modules:
        if getattr(module, "get_train_spec", None) is original:
            changes.replacements.set(
                module, "get_train_spec", get_train_spec, "builds synthetic batches"
            )


def _batches(shape: BatchShape) -> Iterator[Batch]:
    return token_batches(shape, with_positions=False)


def _stated_vocabulary(get_train_spec: Any, config: Any) -> int | None:
    """The vocabulary that the model itself was made for; None when the model takes it from the tokenizer."""
    spec = get_train_spec(config.model.name)
    arguments = (getattr(spec, "model_args", None) or spec.config)[config.model.flavor]
    size = getattr(arguments, "vocab_size", -1)
    return int(size) if isinstance(size, int) and size > 0 else None


def assumed_vocabulary(job: Job) -> int | None:
    """What a model gets that takes its vocabulary from a tokenizer whose files are not there (0.1); None for others."""
    specs: Any = importlib.import_module("torchtitan.protocols.train_spec")
    stated = _stated_vocabulary(specs.get_train_spec, job.config)
    return LLAMA3_VOCABULARY if stated is None else None


def facts(job: Job) -> dict[str, str | int | float | bool | None]:
    flat: dict[str, str | int | float | bool | None] = {}
    for section in dataclasses.fields(job.config):
        values: Any = getattr(job.config, section.name)
        described = vars(values)
        for name, value in described.items():
            if value is None or isinstance(value, (str, int, float, bool)):
                flat[f"{section.name}.{name}"] = value
    return flat
