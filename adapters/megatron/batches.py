"""Batches of the shape that Megatron's datasets give, without a dataset.

One class a training script, each after a `__getitem__` of megatron/core/datasets: GPT-like and hybrid models (gpt_dataset.py,
GPTDataset), BERT (bert_dataset.py, BERTMaskedWordPieceDataset), T5 (t5_dataset.py, T5MaskedWordPieceDataset) and images with
text (multimodal_dataset.py, MockMultimodalDataset). Tensors are on the host, as a DataLoader gives them; the training code
moves them itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.adapter_api import AdapterContext, InterfaceChanged


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


class T5Batches(GptBatches):
    """text_enc and enc_mask of the encoder's length; text_dec, labels, loss_mask and dec_mask of the decoder's."""

    def __next__(self) -> dict[str, torch.Tensor]:
        rows = self.args.micro_batch_size
        lengths = {
            "text_enc": self.args.encoder_seq_length,
            "enc_mask": self.args.encoder_seq_length,
            "text_dec": self.args.decoder_seq_length,
            "labels": self.args.decoder_seq_length,
            "loss_mask": self.args.decoder_seq_length,
            "dec_mask": self.args.decoder_seq_length,
        }
        batch = {
            name: torch.zeros((rows, length), dtype=torch.int64) for name, length in lengths.items()
        }
        batch["truncated"] = torch.zeros((rows,), dtype=torch.int64)
        return batch


class VlmBatches(GptBatches):
    """An image, and text one token longer than asked for: pretrain_vlm.py puts a token of the image in front."""

    def __next__(self) -> dict[str, torch.Tensor]:
        args = self.args
        shape = (args.micro_batch_size, args.dataloader_seq_length + 1)
        batch = {
            name: torch.zeros(shape, dtype=torch.int64)
            for name in ("tokens", "labels", "position_ids")
        }
        batch["loss_mask"] = torch.ones(shape, dtype=torch.float32)
        batch["image"] = torch.zeros(
            (args.micro_batch_size, 3, args.img_h, args.img_w), dtype=torch.float32
        )
        return batch


SCRIPTS: dict[str, type[GptBatches]] = {"bert": BertBatches, "t5": T5Batches, "vlm": VlmBatches}
"""By a word of the script's name; every other script reads batches of GPTDataset's shape."""


def for_script(script: str) -> type[GptBatches]:
    name = os.path.basename(script)
    return next((kind for word, kind in SCRIPTS.items() if word in name), GptBatches)


def _iterator(batches: Any) -> Any:
    """As Megatron wraps it; releases before the rerun machine do not."""
    try:
        from megatron.core.rerun_state_machine import RerunDataIterator
    except ImportError:
        return batches
    return RerunDataIterator(batches)


def install(context: AdapterContext, script: str) -> None:
    """Replaces the building of datasets and loaders."""

    def make(_original: Callable[..., Any]) -> Callable[..., Any]:
        def build(*_arguments: Any, **_options: Any) -> Any:
            from megatron.training import get_args

            args = get_args()
            args.do_train, args.do_valid, args.do_test = True, args.eval_iters > 0, False
            kind = for_script(script)
            iterators = [_iterator(kind(args)), _iterator(kind(args)) if args.do_valid else None]
            return *iterators, None

        return build

    context.replace(
        "megatron.training.training",
        "build_train_valid_test_data_iterators",
        make,
        "datasets are files, and their index builder would be compiled into the checkout",
    )
    _whole_sequences(context)
    try:
        context.replace(
            "megatron.training.initialize",
            "_compile_dependencies",
            lambda _original: lambda *_arguments, **_options: None,
            "the index builder would be compiled into the checkout",
        )
    except (
        InterfaceChanged
    ) as error:  # other releases compile elsewhere, behind the replacement above
        context.log(str(error))


def _whole_sequences(context: AdapterContext) -> None:
    """These batches have no `cu_seqlens`. From January to May 2026 the first rank of a tensor-parallel group sent its length ahead,
    0 then, and the others read it back (megatron/training/utils.py, `get_batch_on_this_tp_rank`)."""
    if not hasattr(context.require("megatron.training.utils"), "get_batch_on_this_tp_rank"):
        return

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def batch_of(*arguments: Any, **options: Any) -> Any:
            outer = context.data_dependent.scalar
            # The only number of this type that travels; other ones (a sequence's length) are int32.
            context.data_dependent.scalar = lambda sent: 0 if sent.dtype is torch.int64 else None
            try:
                return original(*arguments, **options)
            finally:
                context.data_dependent.scalar = outer

        return batch_of

    context.replace(
        "megatron.training.utils",
        "get_batch_on_this_tp_rank",
        make,
        "the length of cu_seqlens travels as a value",
    )
