"""Which storages belong to parameters, gradients, buffers and optimizer state, by address.

An address means something only at the instant it was read; the reader binds it to the allocation that was live then. Tensors
that share a storage count once. A storage that several categories hold is `shared`. Of a DTensor the local part is taken.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

Owner = tuple[str, str]
"""(category, name)."""

SHARED = "shared"


class Inventory:
    """The models and optimizers of a run, held weakly."""

    def __init__(self) -> None:
        self._models: list[tuple[str, weakref.ref[Any]]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._told: dict[int, Owner] = {}

    def add_model(self, model: Any, prefix: str = "") -> None:
        if not any(known() is model for _, known in self._models):
            self._models.append((prefix, weakref.ref(model)))

    def add_optimizer(self, optimizer: Any) -> None:
        if not any(known() is optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def owners(self) -> dict[int, Owner]:
        """Every owned storage now, by its address."""
        found: dict[int, Owner] = {}
        for category, name, tensor in self._tensors():
            address = _address(tensor)
            if address == 0:
                continue
            known = found.get(address)
            if known is None:
                found[address] = (category, name)
            elif known[0] not in (category, SHARED):
                found[address] = (SHARED, f"{known[1]} and {name}")
        return found

    def changes(self) -> list[tuple[int, str, str]]:
        """(address, category, name) of what is new or different since the last call."""
        owners = self.owners()
        new = [
            (address, *owner)
            for address, owner in owners.items()
            if self._told.get(address) != owner
        ]
        self._told = owners
        return new

    def _tensors(self) -> Iterator[tuple[str, str, Any]]:
        names: dict[int, str] = {}
        for prefix, reference in self._models:
            model = reference()
            if model is None:
                continue
            for name, parameter in model.named_parameters():
                full = f"{prefix}.{name}" if prefix else name
                names[id(parameter)] = full
                yield "parameter", full, parameter
                gradient = getattr(parameter, "grad", None)
                if gradient is not None:
                    yield "gradient", full, gradient
                main_gradient = getattr(parameter, "main_grad", None)
                if main_gradient is not None and main_gradient is not gradient:
                    yield "main_gradient", full, main_gradient
            for name, buffer in model.named_buffers():
                yield "buffer", f"{prefix}.{name}" if prefix else name, buffer
        for optimizer_reference in self._optimizers:
            optimizer = optimizer_reference()
            if optimizer is None:
                continue
            for parameter, state in list(getattr(optimizer, "state", {}).items()):
                name = names.get(id(parameter), "")
                if isinstance(state, dict):
                    for key, value in state.items():
                        if hasattr(value, "untyped_storage") or hasattr(value, "_local_tensor"):
                            yield (
                                "optimizer_state",
                                f"{name}.{key}" if name else str(key),
                                value,
                            )


def _address(tensor: Any) -> int:
    """Where the storage of a CUDA tensor begins; 0 for anything else."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    try:
        if not tensor.is_cuda:
            return 0
        return int(tensor.untyped_storage().data_ptr())
    except (
        AttributeError,
        RuntimeError,
    ):  # Functional wrappers and freed storages have no address.
        return 0
