"""Variable-length attention metadata for synthetic batches: where documents begin is data, and data is not on the device.

`create_varlen_metadata_for_document` finds document boundaries with `nonzero` and reads the longest one back to the
host. Both need values. The layout of a synthetic batch is known (synthetic_data.py), so the checkout's own function runs
on real host tensors of that layout, and what it returns is put on the device, where it stays for the step.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memtracker_sidecar.replacements import Replacements

from .interface import holder_of

_FUNCTION = "create_varlen_metadata_for_document"
_MODULES = ("torchtitan.models.common.attention", "torchtitan.models.attention")


def _laid_out(
    parameter: str, like: torch.Tensor, document_length: int, eos: int | None
) -> torch.Tensor:
    """Real host positions, or real host tokens with an end-of-text token last in each document."""
    index = torch.arange(like.shape[-1]) % document_length
    values = (
        index
        if parameter == "positions"
        else torch.where(index == document_length - 1, eos or 0, (eos or 0) + 1)
    )
    return values.expand(like.shape).contiguous()


def _on_device(metadata: Any, device: torch.device) -> Any:
    """The same named tuple, its tensors on `device`; two fields that were one tensor stay one."""
    moved: dict[int, torch.Tensor] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in moved:
            moved[id(value)] = torch.empty(tuple(value.shape), dtype=value.dtype, device=device)
        return moved[id(value)]

    return type(metadata)(*(move(value) for value in metadata))


def install(replacements: Replacements, document_length: int) -> None:
    """Replaces the function in every module of the checkout that imported it. Call after the model is imported."""
    for module in _MODULES:
        found = holder_of(module, _FUNCTION)
        if found is None:
            continue
        function = getattr(*found)
        parameter = next(iter(inspect.signature(function).parameters))

        @functools.wraps(function)
        def on_host(
            tensor: torch.Tensor,
            *arguments: Any,
            _function: Any = function,
            _parameter: str = parameter,
            **keywords: Any,
        ) -> Any:
            with unset_fake_temporarily():
                eos = arguments[0] if arguments else keywords.get("eos_id")
                layout = _laid_out(_parameter, tensor, document_length, eos)
                metadata = _function(layout, *arguments, **keywords)
            return _on_device(metadata, tensor.device)

        for loaded in list(sys.modules.values()):
            name = getattr(loaded, "__name__", "")
            if name.startswith("torchtitan.") and vars(loaded).get(_FUNCTION) is function:
                replacements.set(
                    loaded,
                    _FUNCTION,
                    on_host,
                    "document boundaries come from the synthetic layout",
                )
