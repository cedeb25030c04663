"""TorchTitan from 0.3 on: `--module llama3 --config llama3_8b`, one Trainer.Config dataclass for the whole job.

The run is what `torchtitan.train.main` does (parse, build, train, close), with the config edited between parsing and
building: input and output off, synthetic data, the number of steps. Everything that decides what is on the device
(model, parallelism, checkpointing of activations, compile, CUDA graphs, optimizer) stays as the arguments have it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from . import flux, vision_batches
from .changes import Changes, apply
from .interface import Need
from .phases import (
    COMMON_SPANS,
    MicroBatchCounter,
    Span,
    step_of_trainer,
)
from .stage_boundary import Boundary
from .synthetic_data import SyntheticLoaderConfig, SyntheticTokenizerConfig

NAME = "config registry"
MARKS = ("torchtitan/trainer.py", "torchtitan/config/manager.py")
"""Files that only this generation has."""

NEEDS = (
    Need("torchtitan.config", "ConfigManager.parse_args", "parses the arguments"),
    Need("torchtitan.trainer", "Trainer.Config", "is edited before the trainer is built"),
    Need("torchtitan.trainer", "Trainer.train", "runs the job"),
    Need("torchtitan.tools.logging", "init_logger", "as torchtitan.train.main does"),
    Need(
        "torchtitan.observability.structured_logger",
        "init_structured_logger",
        "is switched off",
        False,
    ),
)

_MICRO_BATCHES = MicroBatchCounter()


def _begin_step(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, str | int]:
    _MICRO_BATCHES.restart()
    return step_of_trainer(arguments, keywords)


TRAINER_SPANS = (
    Span("torchtitan.trainer", "Trainer.__init__", "init"),
    Span("torchtitan.trainer", "Trainer.init_distributed", "distributed"),
    Span("torchtitan.trainer", "Trainer.train_step", "step", _begin_step),
    Span(
        "torchtitan.trainer",
        "Trainer.forward_backward_step",
        "forward_backward",
        _MICRO_BATCHES.labels,
    ),
    Span("torchtitan.trainer", "Trainer.post_dataloading_process", "prepare_batch"),
)
"""Methods of the trainer's class; a subclass may override them, so they are wrapped on the class that is built."""

SPANS = (
    *COMMON_SPANS,
    Span(
        "torchtitan.components.metrics",
        "DeviceMemoryMonitor.get_peak_stats",
        "memory_log",
        required=False,
    ),
    Span("torchtitan.protocols", "BaseModel.init_weights", "init_weights"),
    Span(
        "torchtitan.components.optimizer",
        "OptimizersContainer.__init__",
        "build_optimizer",
    ),
    Span("torchtitan.components.optimizer", "OptimizersContainer.step", "optimizer"),
    Span("torchtitan.components.optimizer", "OptimizersContainer.zero_grad", "zero_grad"),
    Span("torchtitan.distributed.utils", "clip_grad_norm_", "clip_gradients"),
    Span("torchtitan.tools.utils", "GarbageCollection.run", "collect_garbage"),
    Span("torchtitan.components.validate", "Validator.validate", "validation"),
)


@dataclass(frozen=True)
class Job:
    """A parsed job: the trainer's class and its config."""

    trainer: type[Any]
    config: Any

    def build(self) -> Any:
        return self.config.build()

    def model_parts(self, trainer: Any) -> list[torch.nn.Module]:
        return list(trainer.model_parts)

    def train(self, trainer: Any) -> None:
        trainer.train()

    def close(self, trainer: Any) -> None:
        trainer.close()

    def document_length(self) -> int:
        return _context_length(self.config)

    def boundary(self) -> Boundary:
        """Hidden states between stages: packed tokens after 0.3, (micro-batch, sequence) at 0.3; divided among the
        context-parallel ranks and, under sequence parallelism, the tensor-parallel ranks."""
        training, parallelism = self.config.training, self.config.parallelism
        divisor = parallelism.context_parallel_degree
        if parallelism.enable_sequence_parallel:
            divisor *= parallelism.tensor_parallel_degree
        width = int(self.config.model_spec.model.dim)
        if hasattr(training, "num_tokens_per_microbatch_per_dp_rank"):
            tokens = training.num_tokens_per_microbatch_per_dp_rank // divisor
            return Boundary.of((tokens, width), training.mixed_precision_param)
        batch = parallelism.pipeline_parallel_microbatch_size
        return Boundary.of(
            (batch, training.seq_len // divisor, width), training.mixed_precision_param
        )


def _context_length(config: Any) -> int:
    """Tokens of a context: `max_context_length` after 0.3, `seq_len` at 0.3."""
    return int(getattr(config.training, "max_context_length", None) or config.training.seq_len)


def parse(arguments: list[str]) -> Job:
    """Parses the job's own arguments with the checkout's own parser; a refusal is the checkout's own message."""
    importlib.import_module("torchtitan.tools.logging").init_logger()
    config = importlib.import_module("torchtitan.config").ConfigManager().parse_args(arguments)
    owner = type(config)._owner
    return Job(owner, config)


def edit(job: Job, changes: Changes) -> None:
    """Input and output off, data and tokenizer replaced."""
    config = job.config
    apply(config, changes)
    config.metrics.log_freq = 1
    if hasattr(config.debug, "enable_structured_logging"):
        logger = importlib.import_module("torchtitan.observability.structured_logger")
        logger.init_structured_logger(source="training", output_dir=changes.folder, enable=False)
    if flux.is_flux(config):
        flux.edit_encoders(config)
    if changes.synthetic:
        config.dataloader = _synthetic_loader(config, config.dataloader, changes)
        if config.validator.enable and hasattr(config.validator, "dataloader"):
            config.validator.dataloader = _synthetic_loader(
                config, config.validator.dataloader, changes
            )
        if flux.is_flux(config):
            config.tokenizer = flux.SyntheticPromptsConfig(
                t5_tokens=config.tokenizer.max_t5_encoding_len
            )
            return
    if not changes.tokenizer_files:
        config.tokenizer = SyntheticTokenizerConfig(vocabulary=_vocabulary(config))


def _synthetic_loader(config: Any, loader: Any, changes: Changes) -> SyntheticLoaderConfig:
    """Takes the place of `loader`: images too where it reads images."""
    make = None
    if flux.is_flux(config):
        make = flux.batches(loader)
    elif changes.vision.images and vision_batches.processor_of(loader) is not None:
        make = vision_batches.batches(loader, changes.vision, changes.document_length)
    return SyntheticLoaderConfig(document_length=changes.document_length, make=make)


def _vocabulary(config: Any) -> int:
    model = config.model_spec.model
    for name in ("vocab_size", "padded_vocab_size"):
        if isinstance(getattr(model, name, None), int):
            return int(getattr(model, name))
    return int(getattr(getattr(model, "tok_embeddings", None), "num_embeddings", 0) or 0)


def assumed_vocabulary(_job: Job) -> None:
    """Models of this generation say their vocabulary themselves."""
    return None


_CHECKPOINT_SUBCOMMANDS = {
    "SelectiveAC": "selective",
    "FullAC": "full",
    "MemoryBudgetAC": "memory-budget",
    "NoneType": "none",
}
"""torchtitan.distributed.activation_checkpoint.ActivationCheckpointingConfig."""


def facts(job: Job) -> dict[str, str | int | float | bool | None]:
    """The effective config as flat `section.field` scalars, for the trace's record of the run."""
    flat: dict[str, str | int | float | bool | None] = {}

    def visit(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                visit(f"{prefix}.{key}" if prefix else str(key), inner)
        elif value is None or isinstance(value, (str, int, float, bool)):
            flat[prefix] = value

    described = job.config.to_dict()
    described.get("model_spec", {}).pop("model", None)
    visit("", described)
    # The policy is the class of the section (None: off); named as its subcommand on the argument line is.
    policy = type(getattr(job.config, "activation_checkpoint", None)).__qualname__.split(".")[0]
    flat["activation-checkpoint:"] = _CHECKPOINT_SUBCOMMANDS.get(policy, policy)
    return flat
