"""Operators without a fake implementation.

FakeTensorMode would run them on real tensors of the device, to see what comes out; without a GPU that ends in a driver
error that names nothing. Here an operator that writes into tensors it is given (`out=`, as Inductor's wrapper calls
extern kernels) gives those back, because that is all it does to memory; any other ends with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._subclasses.fake_tensor as fake_tensor
import torch.utils._pytree as pytree

from memtracker_sidecar.replacements import Replacements


def out_arguments(func: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that the schema of `func` says it writes its results into."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return []
    return [
        kwargs[each.name]
        for each in schema.arguments
        if each.is_out and isinstance(kwargs.get(each.name), torch.Tensor)
    ]


def install(replacements: Replacements, uncovered: Callable[..., None]) -> None:
    """Replaces FakeTensorMode's last resort."""

    def run_fallback_kernel(
        _mode: Any, func: Any, flat_args: Any, args_spec: Any, error: Exception
    ) -> Any:
        _, kwargs = pytree.tree_unflatten(flat_args, args_spec)
        outputs = out_arguments(func, kwargs)
        if not outputs:
            uncovered(
                "operator",
                str(func),
                detail="it has no fake implementation, so the run cannot go on",
            )
            raise error
        uncovered(
            "operator",
            str(func),
            detail="it has no fake implementation",
            assumption="it writes into the tensors it is given and allocates nothing else",
            once_for=str(func),
        )
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    replacements.set(
        fake_tensor,
        "run_fallback_kernel",
        run_fallback_kernel,
        "runs operators on a real GPU to see their result",
    )
