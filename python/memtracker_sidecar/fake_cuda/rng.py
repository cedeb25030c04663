"""Random number state of the pretended GPU: kept, given back, never drawn from.

Every random operator on a fake CUDA tensor only makes a tensor of the right size. Activation checkpointing, DTensor and the
frameworks save and restore generator states around it, so the states have to be there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from memtracker_sidecar.fake_cuda.streams import device_index_of
from memtracker_sidecar.replacements import Replacements

_STATE_BYTES = 16  # CUDAGeneratorImpl: seed and Philox offset, 8 bytes each


class Generator:
    """Stands for torch.cuda.default_generators[i]."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)
        self._seed = 0
        self._offset = 0

    def get_state(self) -> torch.Tensor:
        words = [self._seed % 2**63, self._offset]
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # a real CPU tensor, as on a GPU
            return torch.tensor(words, dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, state: torch.Tensor) -> Generator:
        return self

    def manual_seed(self, seed: int) -> Generator:
        self._seed = int(seed)
        return self

    def initial_seed(self) -> int:
        return self._seed

    def seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> None:
        self._offset = int(offset)

    def clone_state(self) -> Generator:
        return self

    def graphsafe_get_state(self) -> Generator:
        return self

    def graphsafe_set_state(self, state: Any) -> Generator:
        return self

    def register_generator_state(self, *_arguments: Any) -> None:
        return


def install(replacements: Replacements, device_count: int) -> None:
    """Replaces the generators of torch.cuda."""
    generators = tuple(Generator(index) for index in range(device_count))

    def of(device: Any) -> Generator:
        return generators[device_index_of(device)]

    def set_state(state: Any, device: Any = "cuda") -> None:
        of(device).set_state(state)

    def manual_seed(seed: int) -> None:
        of(None).manual_seed(seed)

    def manual_seed_all(seed: int) -> None:
        for generator in generators:
            generator.manual_seed(seed)

    def set_all(states: Iterable[torch.Tensor]) -> None:
        return

    def set_offset(offset: int, device: Any = "cuda") -> None:
        of(device).set_offset(offset)

    surface: dict[str, Any] = {
        "get_rng_state": lambda device="cuda": of(device).get_state(),
        "set_rng_state": set_state,
        "get_rng_state_all": lambda: [generator.get_state() for generator in generators],
        "set_rng_state_all": set_all,
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed_all,
        "seed": lambda: None,
        "seed_all": lambda: None,
        "initial_seed": lambda: of(None).initial_seed(),
    }
    reason = "CUDA generators need a driver; nothing draws from them on fake tensors"
    replacements.set_all(torch.cuda, surface, reason)
    replacements.set_all(torch.cuda.random, surface, reason)
    replacements.set(torch.cuda, "default_generators", generators, reason)
    replacements.set_existing(
        torch.cuda,
        {
            "_get_generator": of,
            "_set_rng_state_offset": set_offset,
            "_get_rng_state_offset": lambda device="cuda": of(device).get_offset(),
        },
        reason,
    )
