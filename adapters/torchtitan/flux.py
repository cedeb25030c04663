"""Flux: three encoders that only run forward, and batches of images with prompts for two of them.

The encoders are downloads. Their memory follows from their sizes, which the checkout keeps, as published, in
`tests/assets/flux_test_encoders` (used by its own test configuration, torchtitan_recipes/tests/flux.py); with `random_init`
it builds them from these files. A checkout without them needs `--encoder.t5_encoder` and `--encoder.clip_encoder`, folders with
the `config.json` of google/t5-v1_1-xxl and openai/clip-vit-large-patch14. The autoencoder's sizes are in the code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memtracker_sidecar.adapter_api import AdapterProblem

_ENCODERS = {"t5_encoder": "t5-v1_1-xxl", "clip_encoder": "clip-vit-large-patch14"}
_ASSETS = Path("tests", "assets", "flux_test_encoders")
_CLIP_TOKENS = 77
"""torchtitan/models/flux/tokenizer.py, FluxTokenizerContainer.__init__."""


def is_flux(config: Any) -> bool:
    """Whether a job trains a model with text encoders and an autoencoder."""
    return all(hasattr(getattr(config, "encoder", None), name) for name in _ENCODERS)


def edit_encoders(config: Any) -> None:
    """Encoders of the published sizes, from configuration files alone.

    Raises:
        AdapterProblem: a configuration file is not there; the message says which option names it.
    """
    config.encoder.random_init = True
    for option, name in _ENCODERS.items():
        given = getattr(config.encoder, option) or getattr(
            getattr(config.model_spec.model, option, None), "version", ""
        )
        if (Path(given) / "config.json").is_file():
            continue
        if not (_ASSETS / name / "config.json").is_file():
            raise AdapterProblem(
                f"this checkout has no {_ASSETS / name / 'config.json'}, which says how large the encoder is; give "
                f"--encoder.{option}=FOLDER with the config.json of that model"
            )
        setattr(config.encoder, option, f"{_ASSETS / name}/")


@dataclass(kw_only=True, slots=True)
class SyntheticPromptsConfig:
    """Takes the place of `config.tokenizer`: prompts of zeros, as long as the checkout pads them."""

    t5_tokens: int

    def build(self, **_: Any) -> SyntheticPrompts:
        return SyntheticPrompts(self.t5_tokens)

    def to_dict(self) -> dict[str, Any]:
        return {"synthetic": True, "t5_tokens": self.t5_tokens}


class SyntheticPrompts:
    """Stands for FluxTokenizerContainer."""

    def __init__(self, t5_tokens: int) -> None:
        self._lengths = {"clip": _CLIP_TOKENS, "t5": t5_tokens}

    def encode(self, text: str | list[str]) -> dict[str, torch.Tensor]:
        """(prompts, tokens) each: the tokenizers of transformers keep a dimension for one prompt too."""
        prompts = len(text) if isinstance(text, list) else 1
        return {
            name: torch.zeros(prompts, length, dtype=torch.int64)
            for name, length in self._lengths.items()
        }

    def get_vocab_size(self) -> int:
        return 0


def batches(dataloader: Any) -> Callable[..., Iterator[Any]]:
    """What builds the batches from the keywords that the trainer gives to its data loader: images of the configured size."""
    dataset = dataloader.dataset
    while not hasattr(dataset, "processor"):
        dataset = dataset.dataset
    size = int(dataset.processor.img_size)

    def make(**keywords: Any) -> Iterator[Any]:
        types = importlib.import_module("torchtitan.components.data.types")
        collator = dataloader.collator.build(
            context=types.DatasetBuildContext(
                tokenizer=keywords["tokenizer"],
                max_context_length=keywords["max_context_length"],
                num_tokens_per_batch=keywords["num_tokens_per_batch"],
                read_options=getattr(dataloader, "read_options", None),
            )
        )
        while True:
            with unset_fake_temporarily():
                rows = [
                    {
                        "image": torch.zeros(3, size, size),
                        **keywords["tokenizer"].encode(""),
                        "prompt": "",
                    }
                    for _ in range(collator.num_rows_per_batch())
                ]
                batch = collator(rows)
            yield batch

    return make
