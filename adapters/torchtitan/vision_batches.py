"""Batches for models with a vision encoder: image-text samples, put together by the checkout's own collator.

A sample is what the checkout's processor makes of a picture and its caption (hf_datasets/multimodal/mm_datasets.py,
`_process_mm_sample`): the placeholder tokens of each image between a start and an end token, then text. How many tokens an
image takes follows from its size through the processor's own resizing. Sizes of the pictures are data, so they are a
named assumption: `--option image=512x512`, one image a sample (`--option images=N`; 0 is text alone).

Where images are in a batch, and how large they are, the model reads back from the device; the layout here answers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from memtracker_sidecar.adapter_api import AdapterContext, AdapterProblem

from .interface import holder_of

_FUSION = "torchtitan.models.common.multimodal"
_LOCATE = "get_vision_positions"
_ENCODER = "vision_encoder.py"


@dataclass
class VisionLayout:
    """Images of a synthetic batch; every batch has the same.

    `tokens` (tokens,) and `grids` (images, 3), as the collator made them, are known from the first batch on.
    """

    image: tuple[int, int]
    """Height and width of a picture in pixels, before the checkout resizes it."""
    images: int
    """Pictures of a sample."""
    tokens: torch.Tensor | None = field(default=None, repr=False)
    grids: list[list[int]] = field(default_factory=list)

    def read(self, tensor: torch.Tensor) -> list[list[int]] | None:
        """What `tensor.tolist()` would read of the grids: all of (T, H, W), or (H, W); None when it is something else."""
        if tensor.dim() != 2 or tensor.is_floating_point() or tensor.shape[0] != len(self.grids):
            return None
        width = int(tensor.shape[1])
        return [grid[3 - width :] for grid in self.grids] if width in (2, 3) else None


def parse_size(text: str) -> tuple[int, int]:
    """Height and width of `512x384`.

    Raises:
        AdapterProblem: it is written otherwise.
    """
    height, cross, width = text.partition("x")
    if not (cross and height.isdigit() and width.isdigit() and int(height) and int(width)):
        raise AdapterProblem(f"option image is {text!r}; height and width are expected: 512x512")
    return int(height), int(width)


def processor_of(dataloader: Any) -> Any | None:
    """The image processor's config of a data loader's config; None for data without images."""
    dataset = getattr(dataloader, "dataset", None)
    while dataset is not None:
        processor = getattr(dataset, "processor", None)
        if hasattr(processor, "resize_fn") and hasattr(processor, "spatial_merge_size"):
            return processor
        dataset = getattr(dataset, "dataset", None)
    return None


def _resized(processor: Any, image: tuple[int, int]) -> tuple[int, int]:
    """Height and width after the processor's resizing and padding (utils/image.py, `process_image`)."""
    height, width, below, right = processor.resize_fn(
        *image,
        patch_size=processor.patch_size,
        merge_size=processor.spatial_merge_size,
        min_pixels=processor.min_pixels,
        max_pixels=processor.max_pixels,
        max_patches=processor.max_patches,
        max_patches_per_side=processor.max_patches_per_side,
    )
    return height + below, width + right


def _sample(processor: Any, tokenizer: Any, layout: VisionLayout, length: int) -> dict[str, Any]:
    """One sample of `length` tokens: images first, text to the end.

    Raises:
        AdapterProblem: the images take more tokens than the context has; the checkout would skip such a sample.
    """
    height, width = _resized(processor, layout.image)
    factor = processor.patch_size * processor.spatial_merge_size
    placeholders = (height // factor) * (width // factor)
    special = {
        int(getattr(tokenizer, f"{name}_id"))
        for name in ("image", "video", "vision_start", "vision_end", "pad")
    }
    text = next(token for token in range(len(special) + 1) if token not in special)
    image = [
        tokenizer.vision_start_id,
        *[tokenizer.image_id] * placeholders,
        tokenizer.vision_end_id,
    ]
    tokens = image * layout.images
    if len(tokens) >= length:
        raise AdapterProblem(
            f"{layout.images} image(s) of {layout.image[0]}x{layout.image[1]} pixels take {len(tokens)} tokens, and a "
            f"sample has {length}; the checkout skips such samples. Give smaller ones with --option image=HEIGHTxWIDTH"
        )
    tokens += [text] * (length - len(tokens))
    input_ids = torch.tensor(tokens, dtype=torch.int64)
    return {
        "input_ids": input_ids,
        "labels": torch.full_like(input_ids, text),
        "positions": torch.arange(length),
        "pixel_values": [torch.zeros(1, height, width, 3) for _ in range(layout.images)],
    }


def batches(
    dataloader: Any, layout: VisionLayout, document_length: int | None
) -> Callable[..., Iterator[Any]]:
    """What builds the batches from the keywords that the trainer gives to its data loader.

    A sample fills the context. Without `document_length` a batch has as many as the checkout's dataset gives: one, padded,
    or, when the dataset packs samples into rows, as many as fit.
    """
    processor, collator_config = processor_of(dataloader), dataloader.collator
    packed = type(dataloader.dataset).__name__ == "MMSamplePackingConfig"

    def make(**keywords: Any) -> Iterator[Any]:
        types = importlib.import_module("torchtitan.components.data.types")
        tokenizer = keywords["tokenizer"]
        context, tokens = int(keywords["max_context_length"]), int(keywords["num_tokens_per_batch"])
        length = min(document_length or context, tokens)
        samples = tokens // length if packed or document_length else 1
        collator = collator_config.build(
            context=types.DatasetBuildContext(
                tokenizer=tokenizer,
                max_context_length=context,
                num_tokens_per_batch=tokens,
                read_options=getattr(dataloader, "read_options", None),
            )
        )
        while True:
            with unset_fake_temporarily():
                rows = [_sample(processor, tokenizer, layout, length) for _ in range(samples)]
                inputs, labels = collator(rows)
            layout.tokens = inputs["input"]
            grids = inputs["grid_thw"]
            layout.grids = [] if grids is None else grids.tolist()
            yield inputs, labels

    return make


def _asked_by_encoder() -> bool:
    """Whether a vision encoder reads a value."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_ENCODER):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def install(context: AdapterContext, layout: VisionLayout) -> None:
    """Answers what the model reads back about images. Call after the model is imported."""
    replacements = context.replacements
    to_list = FakeTensor.tolist

    def scalar(tensor: torch.Tensor) -> bool | None:
        # An encoder asks whether the grids are as it needs them, and the collator made them so.
        return True if tensor.dtype is torch.bool and _asked_by_encoder() else None

    context.data_dependent.scalar = scalar
    reason = "sizes and places of images come from the synthetic layout"

    def tolist(tensor: FakeTensor) -> Any:
        known = layout.read(tensor)
        return to_list(tensor) if known is None else known

    replacements.set(FakeTensor, "tolist", tolist, reason)
    found = holder_of(_FUSION, _LOCATE)
    if found is None:
        return
    locate = getattr(*found)

    def locate_in_layout(tokens: torch.Tensor, counts: torch.Tensor, placeholder: int) -> Any:
        if layout.tokens is None or tokens.shape != layout.tokens.shape:
            raise AdapterProblem(
                f"the model looks for images among {tuple(tokens.shape)} tokens, and the batch was made otherwise; "
                "text alone runs with --option images=0"
            )
        with unset_fake_temporarily():
            runs = _run_lengths(layout.tokens == placeholder)
            return locate(layout.tokens, torch.tensor(runs[: counts.shape[0]]), placeholder)

    for loaded in list(sys.modules.values()):
        name = getattr(loaded, "__name__", "")
        if name.startswith("torchtitan.") and vars(loaded).get(_LOCATE) is locate:
            replacements.set(loaded, _LOCATE, locate_in_layout, reason)


def _run_lengths(mask: torch.Tensor) -> list[int]:
    """Lengths of the runs of True in `mask` (tokens,)."""
    edges = torch.diff(torch.nn.functional.pad(mask.int(), (1, 1)))
    return ((edges == -1).nonzero() - (edges == 1).nonzero()).flatten().tolist()
