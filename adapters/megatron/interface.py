"""The names of Megatron-LM without which nothing can be traced, checked before anything is replaced.

A row is (module, attribute, what it is for). A name that is missing ends the run, and is named. Features that came or went between
releases are looked for where they are used, and what is missing is reported there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    module: str
    attribute: str
    purpose: str


REQUIRED = (
    Need("megatron.training.arguments", "parse_args", "the argument line"),
    Need(
        "megatron.training.training", "setup_model_and_optimizer", "phase setup_model_and_optimizer"
    ),
    Need("megatron.training.training", "train_step", "steps"),
    Need(
        "megatron.training.training", "training_log", "where Megatron reads its memory statistics"
    ),
    Need(
        "megatron.training.training",
        "build_train_valid_test_data_iterators",
        "batches without a dataset",
    ),
    Need(
        "megatron.core.pipeline_parallel.schedules",
        "forward_step",
        "phase forward of a micro-batch",
    ),
    Need(
        "megatron.core.pipeline_parallel.schedules",
        "backward_step",
        "phase backward of a micro-batch",
    ),
    Need("megatron.core.timers", "Timers", "timers that would gather times from all ranks"),
    Need(
        "megatron.core.optimizer.optimizer",
        "MixedPrecisionOptimizer",
        "the overflow check of the gradients",
    ),
)
