"""Operators whose result depends on values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import TracedRun

Start = Callable[..., TracedRun]


@pytest.mark.parametrize("name", ["unique", "unique_consecutive"])
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("asked", [{}, {"return_inverse": True, "return_counts": True}])
def test_unique_of_a_fake_tensor_has_the_shapes_of_distinct_values(
    traced: Start, name: str, dim: int | None, asked: dict[str, bool]
) -> None:
    def shapes(of: torch.Tensor) -> list[tuple[int, ...]]:
        found = getattr(torch, name)(of, dim=dim, **asked)
        return [tuple(each.shape) for each in (found if asked else (found,))]

    # PyTorch itself, on values that are all different.
    expected = shapes(torch.arange(12).view(3, 4))
    with traced().recording():
        assert shapes(torch.empty(3, 4, dtype=torch.int64, device="cuda")) == expected
