"""Synthetic batches of the shape, dtype and layout that the checkout's own data pipeline would give.

Only sizes matter for memory, so token values are zeros. What does matter is where documents begin, because attention
masks and variable-length metadata depend on it: a document starts every `document_length` tokens (by default the
context length, i.e. one document a sequence), and the trace says so as a named assumption.

Batches are real CPU tensors, as a data loader's are; the trainer copies them to the device itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

LLAMA3_VOCABULARY = 128_256
"""meta-llama/Llama-3.1 tokenizer.model: 128,000 tokens and 256 special ones. Up to 0.2 a Llama takes its vocabulary from the
tokenizer (`n_words` of torchtitan/datasets/tokenizer/tiktoken.py in 2024)."""

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class BatchShape:
    """Tokens of one micro-batch: `(tokens,)` packed, or `(batch, sequence)`, with documents of `document_length`."""

    sizes: tuple[int, ...]
    document_length: int

    def positions(self) -> torch.Tensor:
        return (torch.arange(self.sizes[-1]) % self.document_length).expand(self.sizes).contiguous()


def token_batches(shape: BatchShape, *, with_positions: bool, token: int = 0) -> Iterator[Batch]:
    """An endless stream of micro-batches `({"input": ids, "positions": …}, labels)`, int64 as torch.LongTensor."""
    while True:
        with unset_fake_temporarily():
            tokens = torch.full(shape.sizes, token, dtype=torch.int64)
            labels = torch.zeros(shape.sizes, dtype=torch.int64)
            inputs = (
                {"input": tokens, "positions": shape.positions()}
                if with_positions
                else {"input": tokens}
            )
        yield inputs, labels


class SyntheticLoader:
    """Stands where the trainer's data loader stands: iterable, stateful, closable."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches
        self._iterator: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._iterator is None:
            self._iterator = self._batches()
        return self._iterator

    def __next__(self) -> Any:
        return next(iter(self))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        del state_dict

    def close(self) -> None:
        self._iterator = None


@dataclass(kw_only=True, slots=True)
class SyntheticLoaderConfig:
    """Takes the place of `config.dataloader` in the config-registry generation: the trainer calls `build(...)` on it."""

    document_length: int | None = None
    repeat: bool = True
    make: Callable[..., Iterator[Any]] | None = field(default=None, repr=False)
    """Builds the batches of a model that takes more than tokens; gets the keywords of `build`."""

    def build(self, **keywords: Any) -> SyntheticLoader:
        if self.make is not None:
            make = self.make
            return SyntheticLoader(lambda: make(**keywords))
        shape = batch_shape(keywords, self.document_length)
        return SyntheticLoader(lambda: token_batches(shape, with_positions=True))

    def to_dict(self) -> dict[str, Any]:
        return {"synthetic": True, "document_length": self.document_length}


def batch_shape(keywords: dict[str, Any], document_length: int | None) -> BatchShape:
    """The micro-batch that the trainer asked its data loader for.

    `num_tokens_per_batch` + `max_context_length`: one packed row (TorchTitan after 0.3, components/data/loader.py);
    `local_batch_size` + `seq_len`: a batch of sequences (0.3 and before, components/dataloader.py).

    Raises:
        TypeError: the trainer asks in other words; the message names them.
    """
    if "num_tokens_per_batch" in keywords:
        context = int(keywords["max_context_length"])
        return BatchShape((int(keywords["num_tokens_per_batch"]),), document_length or context)
    if "local_batch_size" in keywords:
        length = int(keywords["seq_len"])
        return BatchShape((int(keywords["local_batch_size"]), length), document_length or length)
    raise TypeError(f"the trainer builds its data loader with unknown keywords: {sorted(keywords)}")


class SyntheticTokenizer:
    """Answers what a trainer asks of a tokenizer when the checkout has no tokenizer files.

    `TOKEN_FIELDS` are the special tokens of a multimodal tokenizer (components/tokenizer.py, MultiModalTokenizer).
    """

    TOKEN_FIELDS = ("image", "video", "vision_start", "vision_end", "pad")
    pad_id = 0
    bos_id = 1
    eos_id = 2
    image_id = 3
    video_id = 4
    vision_start_id = 5
    vision_end_id = 6

    def __init__(self, vocabulary: int) -> None:
        self.n_words = self.vocab_size = vocabulary

    def get_vocab_size(self) -> int:
        return self.vocab_size

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return [self.bos_id, self.eos_id]

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


@dataclass(kw_only=True, slots=True)
class SyntheticTokenizerConfig:
    """Takes the place of `config.tokenizer` in the config-registry generation."""

    vocabulary: int

    def build(self, **_: Any) -> SyntheticTokenizer:
        return SyntheticTokenizer(self.vocabulary)

    def to_dict(self) -> dict[str, Any]:
        return {"synthetic": True, "vocabulary": self.vocabulary}
