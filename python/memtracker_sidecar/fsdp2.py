"""Owners of what FSDP2 (`fully_shard`) allocates: gathered parameters, gradients before they are reduced, and its buffers.

FSDP2 keeps these in places that no sweep over a model sees: the outputs of an all-gather belong to its own parameter objects, the
unsharded gradients are taken off the module before the reduce-scatter, and the sharded ones are put on without a hook.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.owners import Owners
from memtracker_sidecar.replacements import Replacements

_REASON = "names what FSDP2 allocates"


def install(replacements: Replacements, owners: Owners) -> bool:
    """Hooks FSDP2. Returns whether this PyTorch has it where it is looked for; without it, its storages stay unattributed."""
    try:
        from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group
    except ImportError:
        return False
    parameter_class = getattr(_fsdp_param, "FSDPParam", None)
    group_class = getattr(_fsdp_param_group, "FSDPParamGroup", None)
    if parameter_class is None or group_class is None:
        return False
    _claim_gathered(replacements, owners, parameter_class)
    _claim_gradients(replacements, owners, group_class)
    _claim_buffers(replacements, owners, _fsdp_param_group)
    return True


def _name(parameter: Any) -> str:
    return str(
        getattr(parameter, "_param_fqn", None)
        or getattr(getattr(parameter, "_module_info", None), "param_name", "")
    )


def _claim_gathered(replacements: Replacements, owners: Owners, parameter_class: Any) -> None:
    original = getattr(parameter_class, "init_unsharded_param", None)
    if original is None:
        return

    @functools.wraps(original)
    def init_unsharded_param(self: Any, *arguments: Any, **options: Any) -> Any:
        first = not hasattr(self, "_unsharded_param")
        result = original(self, *arguments, **options)
        if first:
            for output in self.all_gather_outputs:
                owners.claim(output, protocol.OWNER_UNSHARDED_PARAMETER, _name(self))
        return result

    replacements.set(parameter_class, "init_unsharded_param", init_unsharded_param, _REASON)


def _claim_gradients(replacements: Replacements, owners: Owners, group_class: Any) -> None:
    original: Callable[..., Any] | None = getattr(group_class, "post_backward", None)
    if original is None:
        return

    @functools.wraps(original)
    def post_backward(self: Any, *arguments: Any, **options: Any) -> Any:
        for parameter in self.fsdp_params:
            unsharded = getattr(parameter, "_unsharded_param", None)
            gradient = getattr(unsharded, "grad", None)
            if gradient is None:
                gradient = getattr(parameter, "unsharded_accumulated_grad", None)
            owners.claim(gradient, protocol.OWNER_GRADIENT, _name(parameter))
        result = original(self, *arguments, **options)
        for parameter in self.fsdp_params:
            sharded = getattr(parameter, "sharded_param", None)
            owners.claim(getattr(sharded, "grad", None), protocol.OWNER_GRADIENT, _name(parameter))
        return result

    replacements.set(group_class, "post_backward", post_backward, _REASON)


def _claim_buffers(replacements: Replacements, owners: Owners, module: Any) -> None:
    """The flat buffers that are gathered into and reduced from, as the two functions return them."""
    for name, what in (
        ("foreach_all_gather", "all-gather output"),
        ("foreach_reduce", "reduce-scatter input"),
    ):
        original = getattr(module, name, None)
        if original is None:
            continue

        def collective(
            *arguments: Any, _original: Any = original, _what: str = what, **options: Any
        ) -> Any:
            result = _original(*arguments, **options)
            if result:
                owners.claim(result[0], protocol.OWNER_COMMUNICATION, f"FSDP2 {_what}")
            return result

        replacements.set(module, name, functools.wraps(original)(collective), _REASON)
