"""Batches of the shape that Megatron's datasets give, without a dataset.

One class a training script: GPT-like models (megatron/core/datasets/gpt_dataset.py, GPTDataset.__getitem__) and BERT
(megatron/core/datasets/bert_dataset.py, BERTMaskedWordPieceDataset.__getitem__). Tensors are on the host, as a DataLoader gives
them; the training code moves them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.adapter_api import AdapterContext


class GptBatches:
    """tokens, labels, loss_mask, position_ids, and attention_mask when it comes from the loader."""

    def __init__(self, args: Any) -> None:
        self.args = args

    def __iter__(self) -> GptBatches:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        args = self.args
        shape = (args.micro_batch_size, args.seq_length)
        batch = {
            "tokens": torch.zeros(shape, dtype=torch.int64),
            "labels": torch.zeros(shape, dtype=torch.int64),
            "loss_mask": torch.ones(shape, dtype=torch.float32),
            "position_ids": torch.zeros(shape, dtype=torch.int64),
        }
        if getattr(args, "create_attention_mask_in_dataloader", False):
            batch["attention_mask"] = torch.ones(
                (shape[0], 1, shape[1], shape[1]), dtype=torch.bool
            )
        return batch

    def is_external(self) -> bool:
        return True


class BertBatches(GptBatches):
    """text, types, labels, is_random, loss_mask, padding_mask."""

    def __next__(self) -> dict[str, torch.Tensor]:
        shape = (self.args.micro_batch_size, self.args.seq_length)
        batch = {
            name: torch.zeros(shape, dtype=torch.int64)
            for name in ("text", "types", "labels", "loss_mask", "padding_mask")
        }
        batch["is_random"] = torch.zeros(shape[:1], dtype=torch.int64)
        return batch


def for_script(script: str) -> type[GptBatches]:
    return BertBatches if "bert" in script else GptBatches


def install(context: AdapterContext, script: str) -> None:
    """Replaces the building of datasets and loaders."""

    def make(_original: Callable[..., Any]) -> Callable[..., Any]:
        def build(*_arguments: Any, **_options: Any) -> Any:
            from megatron.training import get_args

            args = get_args()
            args.do_train, args.do_valid, args.do_test = True, False, False
            batches: Any = for_script(script)(args)
            try:
                from megatron.core.rerun_state_machine import RerunDataIterator
            except ImportError:
                return batches, None, None
            return RerunDataIterator(batches), None, None

        return build

    context.replace(
        "megatron.training.training",
        "build_train_valid_test_data_iterators",
        make,
        "datasets are files, and their index builder would be compiled into the checkout",
    )
    try:
        context.replace(
            "megatron.training.initialize",
            "_compile_dependencies",
            lambda _original: lambda *_arguments, **_options: None,
            "the index builder would be compiled into the checkout",
        )
    except Exception:  # older releases compile elsewhere, behind the replacement above
        context.log("megatron.training.initialize has no _compile_dependencies")
