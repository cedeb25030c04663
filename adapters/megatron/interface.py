"""Every name of Megatron-LM that the adapter holds on to, checked before anything is replaced.

A row is (module, attribute, what it is for). REQUIRED rows end the run when they are missing, by name; OPTIONAL rows are
features that came or went between releases.
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

OPTIONAL = (
    Need(
        "megatron.core.pipeline_parallel.p2p_communication",
        "P2PCommunicator._communicate",
        "phase p2p",
    ),
    Need(
        "megatron.core.distributed.param_and_grad_buffer",
        "_ParamAndGradBucketGroup",
        "phases of the gradient and parameter exchange",
    ),
    Need(
        "megatron.core.distributed.distributed_data_parallel",
        "DistributedDataParallel",
        "gradient buffers",
    ),
    Need("megatron.core.tensor_parallel.random", "CheckpointFunction", "recompute"),
    Need("megatron.training.training", "finalize_model_grads", "phase finalize_model_grads"),
    Need(
        "megatron.core.transformer.moe.token_dispatcher",
        "MoEAlltoAllTokenDispatcher.preprocess",
        "routing of the all-to-all dispatcher",
    ),
    Need(
        "megatron.core.transformer.moe.token_dispatcher",
        "MoEAllGatherTokenDispatcher.dispatch_postprocess",
        "routing of the all-gather dispatcher",
    ),
    Need(
        "megatron.core.transformer.moe.token_dispatcher",
        "maybe_move_tensor_to_cpu",
        "token counts on the host",
    ),
)
