"""Calls by the Python side of earlier releases of TransformerEngine, whose compiled functions took fewer arguments.

The library calls its compiled module by position, so the number of arguments tells which release calls.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def callable_by_earlier_releases(
    *changes: Callable[[list[str]], list[str]], **defaults: Any
) -> Callable[[Function], Function]:
    """Lets releases call a function that takes the present one's parameters.

    `changes` make each release's list of parameters of the next later one's, newest first (:func:`without`, :func:`instead`);
    lists differ in length. `defaults` are what the function meant where a parameter is missing.
    """

    def adapt(function: Function) -> Function:
        names = present = list(inspect.signature(function).parameters)
        by_length = {len(names): names}
        for change in changes:
            names = change(names)
            by_length[len(names)] = names

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) not in by_length:
                return function(*args, **kwargs)
            given = dict(zip(by_length[len(args)], args, strict=True))
            known = {name: value for name, value in given.items() if name in present}
            return function(**{**defaults, **known})

        return call  # type: ignore[return-value]

    return adapt


def without(*added: str) -> Callable[[list[str]], list[str]]:
    """The parameters before `added` came."""
    return lambda names: [name for name in names if name not in added]


def instead(added: Sequence[str], name: str, after: str) -> Callable[[list[str]], list[str]]:
    """The parameters before `added` came and `name`, which stood behind `after`, went."""

    def change(names: list[str]) -> list[str]:
        kept = without(*added)(names)
        kept.insert(kept.index(after) + 1, name)
        return kept

    return change
