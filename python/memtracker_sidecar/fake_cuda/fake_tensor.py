"""What FakeTensor and its neighbours need to know when CUDA is pretended rather than absent."""

from __future__ import annotations

import types
from typing import Any

import torch
import torch._subclasses.fake_tensor as fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memtracker_sidecar.replacements import Replacements


def _no_weakrefs(_tensor: Any) -> list[Any]:
    return []


def _forget_storages(replacements: Replacements) -> None:
    """Results of operators are cached by their arguments; a storage among them would live as long as the cache."""
    takes_storage = frozenset(
        operator
        for operator in (
            getattr(torch.ops.aten.set_, name) for name in torch.ops.aten.set_.overloads()
        )
        if any(str(argument.type) == "Storage" for argument in operator._schema.arguments)
    )
    original = FakeTensorMode._cache_key

    def cache_key(mode: Any, state: Any, func: Any, *arguments: Any) -> Any:
        if func in takes_storage:
            raise fake_tensor._BypassDispatchCache("storage argument")
        return original(mode, state, func, *arguments)

    replacements.set(
        FakeTensorMode,
        "_cache_key",
        cache_key,
        "the cache of results keeps the storages that operators were called with",
    )


def install(replacements: Replacements) -> None:
    """Adjusts FakeTensorMode, Module.to and the foreach optimizers."""
    _forget_storages(replacements)
    replacements.set(
        fake_tensor,
        "init_gpu_context",
        lambda _device: None,
        "makes a real CUDA tensor when CUDA says it is available",
    )
    if isinstance(vars(FakeTensorMode).get("avoid_device_init"), property):
        replacements.set(
            FakeTensorMode,
            "avoid_device_init",
            property(lambda _mode: True),
            "with CUDA available, a real CUDA tensor would be made for each new device",
        )
    else:
        original = FakeTensorMode.__init__

        def initialise(mode: Any, *arguments: Any, **options: Any) -> None:
            original(mode, *arguments, **options)
            mode.avoid_device_init = True

        replacements.set(
            FakeTensorMode,
            "__init__",
            initialise,
            "avoid_device_init is an attribute in this version",
        )
    replacements.set(
        torch.utils,
        "weakref",
        types.SimpleNamespace(**{**vars(torch.utils.weakref), "getweakrefs": _no_weakrefs})
        if hasattr(torch.utils, "weakref")
        else types.SimpleNamespace(getweakrefs=_no_weakrefs),
        "Module._apply swaps parameters with swap_tensors, which refuses the weak references that the fake mode holds",
    )
    import torch.optim.optimizer as optimizer
    import torch.utils._foreach_utils as foreach

    for owner in (foreach, optimizer):
        supported = getattr(owner, "_foreach_supported_types", None)
        if isinstance(supported, list) and FakeTensor not in supported:
            replacements.set(
                owner,
                "_foreach_supported_types",
                [*supported, FakeTensor],
                "the foreach implementation is chosen by exact type; a fake parameter stands for a plain one",
            )
