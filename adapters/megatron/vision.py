"""Images among text: positions that a real batch tells, and sizes that depend on them.

Batches have one image a sample, its token first (batches.py), as the dataset of pretrain_vlm.py makes them. LLaVAModel and the
sharding of its sequence ask for what follows from that: how many positions are an image's, how long a sample is with its image.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memtracker_sidecar.adapter_api import AdapterContext, AdapterProblem, InterfaceChanged

from . import batches

MODEL = "megatron.core.models.multimodal.llava_model"
SHARDING = "megatron.core.models.multimodal.context_parallel"
_PREPROCESS = "_preprocess_data"


def install(context: AdapterContext, script: str) -> None:
    """Does nothing for scripts without images."""
    if batches.for_script(script) is not batches.VlmBatches:
        return
    try:
        _positions(context)
        _sharding(context)
    except (InterfaceChanged, AdapterProblem) as error:
        context.uncovered("feature", "image positions", detail=str(error), assumption="")


def _positions(context: AdapterContext) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def preprocess(
            self: Any, images: Any, text: Any, input_ids: Any, *rest: Any, **named: Any
        ) -> Any:
            samples, length = input_ids.shape
            combined = length - 1 + self.img_seq_len
            context.uncovered(
                "data_dependent", "images", assumption="one image a sample, its token first"
            )

            def scalar(tensor: torch.Tensor) -> Any:
                return combined if _local(tensor) == "max_seq_len" else None

            def selected(_tensor: torch.Tensor, mask: torch.Tensor) -> int | None:
                if _local(mask) == "images_mask":
                    return int(samples * self.img_seq_len)
                if _local(mask) == "image_token_mask":
                    return int(samples)
                return int(samples * (length - 1)) if mask.shape == input_ids.shape else None

            answers = context.data_dependent
            outer = answers.scalar, answers.selected
            answers.scalar, answers.selected = scalar, selected
            try:
                return original(self, images, text, input_ids, *rest, **named)
            finally:
                answers.scalar, answers.selected = outer

        return preprocess

    context.replace(
        MODEL,
        f"LLaVAModel.{_PREPROCESS}",
        make,
        "where images are is a value of the batch",
    )


def _local(tensor: torch.Tensor) -> str:
    """The name that LLaVAModel's function has for a tensor."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != _PREPROCESS:
        frame = frame.f_back
    if frame is None:
        return ""
    return next((name for name, value in frame.f_locals.items() if value is tensor), "")


def _image_length() -> int:
    """Embeddings of one image, less the token that they replace."""
    from megatron.core.models.vision.clip_vit_model import get_num_image_embeddings
    from megatron.training import get_args

    args = get_args()
    return (
        get_num_image_embeddings(
            args.img_h,
            args.img_w,
            args.patch_dim,
            "clip",
            args.disable_vision_class_token,
            1,
            False,
        )
        - 1
    )


def _sharding(context: AdapterContext) -> None:
    def padding(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_padding(seq_len: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(seq_len, FakeTensor):
                from megatron.training import get_args

                seq_len = get_args().dataloader_seq_length + 1 + _image_length()
            return original(seq_len, *rest, **named)

        return get_padding

    def packed(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_packed_seq_params(tokens: Any, img_seq_len: Any, *rest: Any, **named: Any) -> Any:
            if isinstance(img_seq_len, FakeTensor):
                img_seq_len = _image_length()
            return original(tokens, img_seq_len, *rest, **named)

        return get_packed_seq_params

    reason = "how long a sample is with its image is a value of the batch"
    context.replace(SHARDING, "get_padding", padding, reason)
    context.replace(SHARDING, "get_packed_seq_params", packed, reason)
