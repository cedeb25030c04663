"""What is changed in the parsed arguments, and why. Nothing that decides the memory of a training step is on the list.

Changes are made between parsing and Megatron's own validation, so its checks and derived values apply to what runs.
"""

from __future__ import annotations

import importlib
import os
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from memtracker_sidecar.adapter_api import AdapterContext, AdapterProblem, InterfaceChanged

OFF: dict[str, tuple[Any, str]] = {
    "save": (None, "no checkpoint is written"),
    "pretrained_checkpoint": (None, "no checkpoint is read"),
    "save_interval": (None, "no checkpoint is written"),
    "async_save": (False, "no checkpoint is written"),
    "use_persistent_ckpt_worker": (False, "no checkpoint is written"),
    "non_persistent_save_interval": (None, "no checkpoint is written"),
    "non_persistent_ckpt_type": (None, "no checkpoint is written"),
    "use_checkpoint_args": (False, "no checkpoint is read; the argument line is what counts"),
    "ckpt_convert_format": (None, "no checkpoint is converted"),
    "exit_on_missing_checkpoint": (False, "no checkpoint is read"),
    "ckpt_assume_constant_structure": (False, "no checkpoint is written"),
    "wandb_project": ("", "nothing is logged to a server"),
    "enable_one_logger": (False, "nothing is logged to a server"),
    "log_progress": (False, "no progress file"),
    "exit_signal_handler": (False, "signals belong to memtracker"),
    "exit_duration_in_mins": (None, "the number of steps decides"),
    "exit_interval": (None, "the number of steps decides"),
    "enable_ft_package": (False, "no launcher to report to"),
    "inprocess_restart": (False, "no launcher to report to"),
    "log_straggler": (False, "times are not measured"),
    "profile": (False, "no profiler"),
    "check_for_spiky_loss": (False, "values do not exist"),
    "check_for_large_grads": (False, "values do not exist"),
    "check_weight_hash_across_dp_replicas_interval": (None, "values do not exist"),
    "use_gloo_process_groups": (False, "host-side groups hold no GPU memory"),
    "data_path": (None, "batches are made up"),
    "data_args_path": (None, "batches are made up"),
    "per_split_data_args_path": (None, "batches are made up"),
    "train_data_path": (None, "batches are made up"),
    "valid_data_path": (None, "batches are made up"),
    "test_data_path": (None, "batches are made up"),
    "mock_data": (True, "batches are made up"),
    "num_workers": (0, "batches are made up"),
    "skip_train": (False, "training is what is asked for"),
    "fim_data": (False, "batches are made up; the shape of a batch is the same"),
}

PUBLISHED_VOCABULARY = {
    "GPT2BPETokenizer": (50257, "gpt2 vocab.json"),
    "BertWordPieceLowerCase": (30522, "bert-large-uncased vocab.txt"),
    "BertWordPieceCase": (28996, "bert-large-cased vocab.txt"),
}
"""Entries of tokenizers that have one published vocabulary."""

TOKENIZERS_OF_TRAINING = "megatron.training.tokenizer.tokenizer"
"""Gone since February 2026."""

NULL_TOKENIZERS = (
    ("megatron.core.tokenizers.text.libraries.null_tokenizer", "NullTokenizer"),
    (TOKENIZERS_OF_TRAINING, "_NullTokenizer"),  # before September 2025
)


def install(context: AdapterContext) -> None:
    """Puts the changes between parsing and validation."""

    def make(parse_args: Callable[..., Namespace]) -> Callable[..., Namespace]:
        def parse_and_change(*arguments: Any, **options: Any) -> Namespace:
            parsed = parse_args(*arguments, **options)
            changed = _switch_off(parsed, os.path.basename(context.plan.argv[0]))
            changed.update(_samples_to_iterations(parsed))
            changed.update(_tokenizer(context, parsed))
            changed.update(_limit_micro_batches(context, parsed))
            changed.update(_early_capture(context, parsed))
            changed.update(_evaluation(context, parsed))
            context.facts("changed_arguments", changed)
            return parsed

        return parse_and_change

    reason = "no files, no servers, no values"
    context.replace("megatron.training.arguments", "parse_args", make, reason)
    # Before 2026-05 `initialize_megatron` parses, under a name of its own.
    if hasattr(context.require("megatron.training.initialize"), "parse_args"):
        context.replace("megatron.training.initialize", "parse_args", make, reason)


def _change(parsed: Namespace, name: str, value: Any, changed: dict[str, str], reason: str) -> None:
    if hasattr(parsed, name) and getattr(parsed, name) != value:
        changed[name] = f"{getattr(parsed, name)!r} -> {value!r}: {reason}"[:300]
        setattr(parsed, name, value)


def _switch_off(parsed: Namespace, script: str) -> dict[str, str]:
    changed: dict[str, str] = {}
    for name, (value, off) in OFF.items():
        _change(parsed, name, value, changed, off)
    _load_nothing(parsed, changed)
    if getattr(parsed, "use_megatron_fsdp", False):
        _change(
            parsed,
            "ckpt_format",
            "fsdp_dtensor",
            changed,
            "the only format that Megatron-FSDP accepts",
        )
    elif getattr(parsed, "overlap_param_gather_with_optimizer_step", False):
        reason = "this overlap is refused with the distributed formats"
        _change(parsed, "ckpt_format", "torch", changed, reason)
        _change(parsed, "use_gloo_process_groups", True, changed, "the torch format wants them")
    elif "vlm" in script:
        _change(parsed, "ckpt_format", "torch", changed, "the only format that the script accepts")
    elif not getattr(parsed, "use_torch_fsdp2", False):
        # Torch's legacy format refuses nothing that the distributed one accepts, but some options need the latter.
        _change(
            parsed,
            "ckpt_format",
            "torch_dist",
            changed,
            "no checkpoint is written; the format is only checked",
        )
    return changed


def _load_nothing(parsed: Namespace, changed: dict[str, str]) -> None:
    """Megatron-FSDP makes its optimizer state while it looks for a checkpoint, before it knows whether there is one
    (megatron/training/checkpointing.py, load_checkpoint): it looks in a folder that does not exist."""
    if parsed.load is not None and getattr(parsed, "use_megatron_fsdp", False):
        empty = os.path.join(parsed.load, "no-checkpoint")
        reason = (
            "no checkpoint is read, but the optimizer state is made that one would be read into"
        )
        _change(parsed, "load", empty, changed, reason)
    else:
        _change(parsed, "load", None, changed, "no checkpoint is read")


def _samples_to_iterations(parsed: Namespace) -> dict[str, str]:
    """Schedules are cut short: the learning rate has no size."""
    changed: dict[str, str] = {}
    if getattr(parsed, "train_samples", None) is not None:
        _change(parsed, "train_samples", None, changed, "a schedule in iterations instead")
        _change(parsed, "lr_decay_samples", None, changed, "a schedule in iterations instead")
        _change(parsed, "lr_warmup_samples", 0, changed, "a schedule in iterations instead")
    if getattr(parsed, "train_iters", None) is None:
        _change(parsed, "train_iters", 1000, changed, "a schedule in iterations instead")
        _change(parsed, "lr_decay_iters", 1000, changed, "a schedule in iterations instead")
    for name in ("rampup_batch_size", "step_batch_size_schedule"):
        _change(parsed, name, None, changed, "the full batch from the first step on")
    return changed


def _tokenizer(context: AdapterContext, parsed: Namespace) -> dict[str, str]:
    """Only the number of entries matters. The tokenizer's own files are used where they are."""
    changed: dict[str, str] = {}
    kind = getattr(parsed, "tokenizer_type", None) or "GPT2BPETokenizer"
    if (
        "bert" in os.path.basename(context.plan.argv[0])
        and getattr(parsed, "tokenizer_type", None) is None
    ):
        kind = "BertWordPieceLowerCase"
    size = context.option("vocab_size", 0)
    source = "--option vocab_size"
    if not size and getattr(parsed, "vocab_size", None):
        size, source = int(parsed.vocab_size), "--vocab-size"
    if not size and getattr(parsed, "padded_vocab_size", None):
        size, source = int(parsed.padded_vocab_size), "--padded-vocab-size"
    if not size:
        size, source = _from_file(getattr(parsed, "vocab_file", None))
        if not size and kind in PUBLISHED_VOCABULARY:
            size, source = PUBLISHED_VOCABULARY[kind]
            context.uncovered(
                "feature",
                "tokenizer",
                detail=kind,
                assumption=f"{size} entries, as the published {source} has",
            )
        size += added_to_file(kind, parsed) if size else 0
    if not size:
        raise AdapterProblem(
            f"the size of the vocabulary is not known: tokenizer {kind} at {getattr(parsed, 'tokenizer_model', None)!r} is not "
            f"read. Give the number of its entries with --option vocab_size=N (or Megatron's own --vocab-size)."
        )
    _change(
        parsed,
        "tokenizer_type",
        "NullTokenizer",
        changed,
        f"only the number of entries matters: {size} ({source})",
    )
    own = 0 if kind.startswith("Null") else entries_of_null_tokenizer()
    _change(
        parsed,
        "vocab_size",
        size - own,
        changed,
        f"{size} entries ({source}), {own} of them the NullTokenizer's own",
    )
    return changed


def added_to_file(kind: str, parsed: Namespace) -> int:
    """Entries that a tokenizer has besides those of its vocabulary file.

    Word pieces: 100 sentinels for the cased vocabulary (build_tokenizer.py of 32570939, February 2026); before, [BOS], [EOS] and
    `--vocab-extra-ids` sentinels (tokenizer.py, _BertWordPieceTokenizer).
    """
    if not kind.startswith("BertWordPiece"):
        return 0
    try:
        importlib.import_module(TOKENIZERS_OF_TRAINING)
    except ModuleNotFoundError:
        return 100 if kind == "BertWordPieceCase" else 0
    return 2 + int(getattr(parsed, "vocab_extra_ids", 0) or 0)


def entries_of_null_tokenizer() -> int:
    """Entries that NullTokenizer counts besides those that it is told of: until April 2026 one, for the end of a document.

    Where the vocabulary fills its padding (`--make-vocab-size-divisible-by` times tensor parallelism) one more makes another row of it.

    Raises:
        InterfaceChanged: the checkout has no such tokenizer.
    """
    for module, name in NULL_TOKENIZERS:
        try:
            tokenizer = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError:
            continue
        if tokenizer is not None:
            return int(tokenizer(1).vocab_size) - 1
    looked = ", ".join(f"{module}.{name}" for module, name in NULL_TOKENIZERS)
    raise InterfaceChanged(
        f"this checkout has none of {looked}, which stands for the job's tokenizer"
    )


def _from_file(path: str | None) -> tuple[int, str]:
    """Entries of a vocabulary file: a JSON object, or a line for each."""
    if not path or not os.path.isfile(path):
        return 0, ""
    if path.endswith(".json"):
        import json

        with open(path, encoding="utf-8") as file:
            return len(json.load(file)), path
    with open(path, encoding="utf-8", errors="replace") as file:
        return sum(1 for _ in file), path


def _limit_micro_batches(context: AdapterContext, parsed: Namespace) -> dict[str, str]:
    """A pipeline's peak is reached when it is full; more micro-batches repeat it."""
    changed: dict[str, str] = {}
    micro, batch = (
        getattr(parsed, "micro_batch_size", None),
        getattr(parsed, "global_batch_size", None),
    )
    if not micro or not batch:
        return changed
    stages = parsed.pipeline_model_parallel_size
    # schedules.py, forward_backward_pipelining_with_interleaving: micro-batches come in groups of this many.
    group = getattr(parsed, "microbatch_group_size_per_vp_stage", None) or stages
    model = parsed.tensor_model_parallel_size * stages * parsed.context_parallel_size
    replicas = max(1, context.spec.world // model)
    count = batch // (micro * replicas)
    most = context.option("micro_batches", 0) or max(16, 2 * group)
    most = max(group, most // group * group)
    if count > most:
        _change(
            parsed,
            "global_batch_size",
            most * micro * replicas,
            changed,
            f"{most} of {count} micro-batches a step are run",
        )
        context.uncovered(
            "feature",
            "micro-batches",
            detail=f"{most} of {count} micro-batches a step are run",
            assumption="later micro-batches repeat the memory of earlier ones",
        )
    return changed


def _evaluation(context: AdapterContext, parsed: Namespace) -> dict[str, str]:
    """The first evaluation is many steps away: none is run, or one after each step."""
    changed: dict[str, str] = {}
    iterations = context.option("evaluation", 0)
    reason = f"--option evaluation={iterations}" if iterations else "no evaluation in so few steps"
    _change(parsed, "eval_iters", iterations, changed, reason)
    _change(parsed, "eval_interval", 1 if iterations else 1_000_000, changed, reason)
    return changed


def _early_capture(context: AdapterContext, parsed: Namespace) -> dict[str, str]:
    """CUDA graphs are captured after some steps; few are run here, and the last has to be one with graphs."""
    changed: dict[str, str] = {}
    last = max(0, context.spec.steps - 1)
    by_step = ("transformer_engine", "full_iteration")
    if getattr(parsed, "cuda_graph_impl", None) not in by_step and not getattr(
        parsed, "external_cuda_graph", False
    ):
        return changed
    if (getattr(parsed, "cuda_graph_warmup_steps", None) or 0) > last:
        reason = f"graphs are captured before the last of {context.spec.steps} steps"
        _change(parsed, "cuda_graph_warmup_steps", last, changed, reason)
    return changed
