"""Answers to questions about values and about other ranks, where Megatron asks them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memtracker_sidecar.adapter_api import AdapterContext, AdapterProblem, InterfaceChanged

OPTIMIZER = "megatron.core.optimizer.optimizer"


def install(context: AdapterContext) -> None:
    _keep_parameters(context)
    _overflow(context)
    _broadcast_sizes(context)
    _received_shapes(context)
    _self_checks(context)
    _real_meshes(context)
    timers = context.require("megatron.core.timers", "Timers")
    for name in ("log", "write"):
        context.replacements.set(
            timers,
            name,
            lambda *_arguments, **_options: None,
            "times would be gathered from all ranks",
        )
    for name in ("save_checkpoint_and_time", "save_checkpoint"):
        _nothing(context, "megatron.training.training", name, "no checkpoint is written")
    _nothing(
        context,
        "megatron.core.pipeline_parallel.utils",
        "set_ideal_affinity_for_current_gpu",
        "asks NVML which processor is near the GPU",
    )
    _states_of_first_rank(context)
    _finite_gradients(context)
    _offloading(context)
    _layer_offloading(context)
    _shared_memory(context)
    _graph_arguments(context)
    _nothing(
        context,
        "megatron.training.training",
        "check_param_hashes_across_dp_replicas",
        "values do not exist",
        True,
    )


def _where_there(
    context: AdapterContext,
    module: str,
    attribute: str,
    make: Callable[[Any], Any],
    reason: str,
) -> None:
    """Replaces what came or went between releases. Where a checkout does not have it there is nothing to replace."""
    try:
        context.replace(module, attribute, make, reason)
    except AdapterProblem as error:
        context.log(str(error))


def _nothing(
    context: AdapterContext, module: str, attribute: str, reason: str, answer: Any = None
) -> None:
    """Switches a function off, where there is one."""
    _where_there(
        context, module, attribute, lambda _original: lambda *_arguments, **_options: answer, reason
    )


def _overflow(context: AdapterContext) -> None:
    """Gradients are finite, but for the first steps of fp16 with a dynamic loss scale.

    Such runs start from a scale (2^32 by default) at which fp16 gradients overflow, so that the first update is skipped: its step
    has no optimizer state yet. How many steps is the option `overflow`.
    """
    skipped = context.option("overflow", 1)

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def check(self: Any, *arguments: Any, **options: Any) -> Any:
            scaler = getattr(self, "grad_scaler", None)
            dynamic = scaler is not None and type(scaler).__name__ == "DynamicGradScaler"
            answer = 1.0 if dynamic and context.steps_done < skipped else 0.0
            if dynamic:
                context.uncovered(
                    "data_dependent",
                    "gradient overflow",
                    assumption=f"the first {skipped} steps overflow, later ones do not",
                )
            outer = context.data_dependent.scalar
            context.data_dependent.scalar = lambda _tensor: answer
            try:
                return original(self, *arguments, **options)
            finally:
                context.data_dependent.scalar = outer

        return check

    context.replace(
        OPTIMIZER,
        "MixedPrecisionOptimizer._unscale_main_grads_and_check_for_nan",
        make,
        "whether gradients are finite decides whether the update happens",
    )


def _broadcast_sizes(context: AdapterContext) -> None:
    """`broadcast_data` sends sizes as a tensor and reads them back; every rank of a tensor-parallel group has the same batch."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def sizes_of(keys: Any, data: Any, tp_group: Any = None) -> Any:
            if data is None:
                return original(keys, data, tp_group)
            from megatron.core.tensor_parallel import data as module

            sizes = torch.tensor(
                [0] * (module._MAX_DATA_DIM * len(keys)), dtype=torch.long, device="cuda"
            )
            del sizes
            shapes = {key: list(data[key].size()) for key in keys}
            counts = {key: math.prod(shape) for key, shape in shapes.items()}
            return shapes, counts, sum(counts.values())

        return sizes_of

    try:
        context.replace(
            "megatron.core.tensor_parallel.data",
            "_build_key_size_numel_dictionaries",
            make,
            "sizes travel as values of a tensor",
        )
    except InterfaceChanged as error:
        context.uncovered("feature", "broadcast_data", detail=str(error), assumption="")


def _received_shapes(context: AdapterContext) -> None:
    """With a stage for multi-token prediction alone, or sequences of variable length, pipeline stages send each other the shapes of
    what they send. Hidden states have the job's own shape, but for what that stage hands on: main and predicted states in one."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def shapes(self: Any, *arguments: Any, **options: Any) -> Any:
            from megatron.training import get_args

            args = get_args()
            length = args.seq_length // args.context_parallel_size
            if args.sequence_parallel:
                length //= args.tensor_model_parallel_size
            usual = [length, args.micro_batch_size, args.hidden_size]
            known = not self.config.variable_seq_lengths and not _near_prediction(self.config)
            context.uncovered(
                "data_dependent",
                "shapes between pipeline stages",
                detail=str(usual),
                assumption="the hidden states of one micro-batch" if known else "",
            )
            return tuple(
                usual if any(received) else received
                for received in original(self, *arguments, **options)
            )

        return shapes

    _where_there(
        context,
        "megatron.core.pipeline_parallel.p2p_communication",
        "P2PCommunicator._communicate_shapes",
        make,
        "shapes travel as values of a tensor",
    )


def _near_prediction(config: Any) -> bool:
    """Whether this rank or a neighbour of it holds a stage of multi-token prediction."""
    from megatron.core import parallel_state
    from megatron.core.transformer.enums import LayerType

    layout = getattr(config.pipeline_model_parallel_layout, "layout", None)
    if layout is None:
        return False
    rank, size = parallel_state.get_pipeline_model_parallel_rank(), len(layout)
    near = (layout[(rank + step) % size] for step in (-1, 0, 1))
    return any(LayerType.mtp in stage for stages in near for stage in stages)


def _self_checks(context: AdapterContext) -> None:
    """Checks that ranks hold equal parameters (`--qk-layernorm`, test mode): they do."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def check(*arguments: Any, **options: Any) -> Any:
            outer = context.data_dependent.scalar
            context.data_dependent.scalar = lambda tensor: (
                True if tensor.dtype is torch.bool else None
            )
            try:
                return original(*arguments, **options)
            finally:
                context.data_dependent.scalar = outer

        return check

    try:
        context.replace(
            "megatron.core.transformer.attention",
            "SelfAttention.run_realtime_tests",
            make,
            "compares parameters with those of other ranks",
        )
    except InterfaceChanged as error:
        context.uncovered("feature", "realtime tests", detail=str(error), assumption="")


def _keep_parameters(context: AdapterContext) -> None:
    """`module.cuda()` and `module.bfloat16()` give a parameter new data and keep the parameter, as PyTorch does on a GPU.

    Parameters carry what Megatron decides by (`allreduce`, `sequence_parallel`, `tensor_model_parallel`). PyTorch changes subclasses
    of Tensor, which a fake tensor is, by swapping the whole object, and the attributes are lost with it. A parameter that leaves the
    meta device is replaced by a new one, on a GPU too.
    """

    def convert(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with torch.no_grad():
            converted = function(tensor)
        if converted is tensor:
            return
        tensor.data = converted
        if isinstance(tensor, FakeTensor) and isinstance(converted, FakeTensor):
            tensor.fake_device = converted.fake_device

    original = torch.nn.Module._apply

    @functools.wraps(original)
    def apply(
        self: torch.nn.Module,
        function: Callable[[torch.Tensor], torch.Tensor],
        recurse: bool = True,
    ) -> torch.nn.Module:
        if recurse:
            for child in self.children():
                child._apply(function)
        for name, parameter in self._parameters.items():
            if parameter is None:
                continue
            if parameter.device.type == "meta":
                with torch.no_grad():
                    converted = function(parameter)
                self._parameters[name] = torch.nn.Parameter(converted, parameter.requires_grad)
                continue
            convert(parameter, function)
            if parameter.grad is not None:
                convert(parameter.grad, function)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = function(buffer)
        return self

    context.replacements.set(
        torch.nn.Module, "_apply", apply, "keeps the attributes of parameters, as on a GPU"
    )


def _real_meshes(context: AdapterContext) -> None:
    """Megatron-FSDP computes ranks of its meshes with small CPU tensors and reads them back: they have to be real ones."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    def real(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def outside_fake_mode(*arguments: Any, **options: Any) -> Any:
            with unset_fake_temporarily():
                return original(*arguments, **options)

        return outside_fake_mode

    adapter = "megatron.core.distributed.fsdp.mcore_fsdp_adapter"
    index = "megatron.core.distributed.fsdp.src.megatron_fsdp.utils"
    for module, name in (
        (adapter, "_get_hsdp_tp_mesh"),
        (adapter, "_get_dp_tp_mesh"),
        (adapter, "_check_mesh_ranks_and_group_ranks_are_consistent"),
        (adapter, "FullyShardedDataParallel._init_dist_index"),
        (index, "FSDPDistributedIndex.get_logical_hybrid_fsdp_rank"),
    ):
        _where_there(
            context, module, name, real, "mesh arithmetic needs the values of real CPU tensors"
        )
    buffers = "megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer"
    _where_there(
        context,
        buffers,
        "validate_uneven_dtensor",
        lambda _original: lambda _dtensor: None,
        "asks the other ranks whether their chunks reach the ends; Megatron skips it for fake process groups too",
    )


def _states_of_first_rank(context: AdapterContext) -> None:
    """Megatron-FSDP sends the generator states of a tensor-parallel group's first rank to the others; nothing arrives here."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load(states: Any) -> None:
            if states is not None:
                original(states)

        return load

    module = "megatron.core.distributed.fsdp.mcore_fsdp_adapter"
    _where_there(
        context, module, "_load_rng_state_dict", make, "states would come from another rank"
    )


def _finite_gradients(context: AdapterContext) -> None:
    """Megatron-FSDP looks at the norm of each gradient bucket: it is not NaN, and it is finite."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def check(gradient: Any) -> None:
            answers = iter((False, True))
            outer = context.data_dependent.scalar
            context.data_dependent.scalar = lambda _tensor: next(answers, None)
            try:
                original(gradient)
            finally:
                context.data_dependent.scalar = outer

        return check

    package = "megatron.core.distributed.fsdp.src.megatron_fsdp"
    for module in (f"{package}.param_and_grad_buffer", f"{package}.megatron_fsdp"):
        _where_there(
            context, module, "_check_nan_in_grad", make, "whether gradients are finite is not known"
        )


def _offloading(context: AdapterContext) -> None:
    """Fine-grained activation offloading leaves a compiler's fake tensors alone; those of the run stand for plain ones."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    def make(_original: Any) -> Any:
        def can_manage(tensor: torch.Tensor) -> bool:
            if isinstance(tensor, (torch.nn.Parameter, FunctionalTensor)):
                return False
            if (
                isinstance(tensor, FakeTensor)
                and tensor.fake_mode is not context.recorder.fake_mode
            ):
                return False
            return tensor.device.type == "cuda"

        return staticmethod(can_manage)

    module = "megatron.core.pipeline_parallel.fine_grained_activation_offload"
    _where_there(
        context,
        module,
        "ChunkOffloadHandler._can_manage_tensor_for_offload",
        make,
        "takes every fake tensor for a compiler's",
    )


def _layer_offloading(context: AdapterContext) -> None:
    """TransformerEngine's offloading of whole layers leaves every fake tensor alone; those of the run stand for plain ones."""
    from unittest.mock import patch

    from torch._subclasses.functional_tensor import FunctionalTensor

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def check(self: Any, tensor: torch.Tensor) -> bool:
            with patch.object(torch._subclasses, "FakeTensor", FunctionalTensor):
                return bool(original(self, tensor))

        return check

    module = "transformer_engine.pytorch.cpu_offload"
    _where_there(
        context,
        module,
        "OffloadableLayerState._check_if_offload",
        make,
        "takes every fake tensor for a compiler's",
    )


def _shared_memory(context: AdapterContext) -> None:
    """A discarded output gets the memory of its recomputation: a C++ extension that Megatron compiles on first use."""
    from memtracker_sidecar.fake_cuda import addresses

    module = "megatron.core.tensor_parallel.random"
    _where_there(
        context,
        module,
        "_get_share_storage",
        lambda _original: lambda: addresses.share,
        "exchanges the memory of C++ storages, and fake ones have none",
    )


def _graph_arguments(context: AdapterContext) -> None:
    """Megatron's own CUDA graphs describe arguments by their exact class, which has to be torch.Tensor."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def describe(self: Any, argument: Any) -> None:
            original(self, argument)
            if self.type is FakeTensor:
                self.type = torch.Tensor

        return describe

    module = "megatron.core.transformer.cuda_graphs"
    _where_there(
        context, module, "ArgMetadata.__init__", make, "a fake tensor stands for a plain one"
    )
