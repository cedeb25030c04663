"""Dynamo under a pretended GPU."""

from __future__ import annotations

import functools
import os
import sys
import types
from typing import Any

import torch
import torch._dynamo.trace_rules as trace_rules

from memtracker_sidecar.replacements import Replacements


def install(replacements: Replacements) -> None:
    """Lets Dynamo tell the replaced functions of torch apart."""
    _give_each_name_its_own_function(replacements)
    _never_start_in_own_code(replacements)

    @functools.cache
    def get_torch_obj_rule_map() -> dict[Any, Any]:
        rules: dict[Any, Any] = {}
        folder = trace_rules._module_dir(torch) or ""
        tables: Any = trace_rules.torch_name_rule_map
        for table in tables:
            for name, rule in table.items():
                found = (
                    folder + name[len("torch/") :]
                    if ".py#" in name
                    else trace_rules.load_object(name)
                )
                if found is not None:
                    rules.setdefault(
                        getattr(found, "__wrapped__", found) if _cached(found) else found,
                        rule,
                    )
        return rules

    replacements.set(
        trace_rules,
        "get_torch_obj_rule_map",
        get_torch_obj_rule_map,
        "refuses two names for one function, such as set_device of torch.cuda and of torch.accelerator",
    )


def _give_each_name_its_own_function(replacements: Replacements) -> None:
    """Dynamo keys its rules and handlers by function object and refuses one object under two names."""
    taken: set[int] = set()
    for owner in (torch.cuda, torch.accelerator, torch._C):
        for name, member in list(vars(owner).items()):
            if not isinstance(member, types.FunctionType):
                continue
            if id(member) in taken:
                member = _copy(member)
                replacements.set(owner, name, member, "Dynamo tells functions apart by identity")
            taken.add(id(member))


def _copy(function: types.FunctionType) -> types.FunctionType:
    copy = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _own_folders() -> tuple[str, ...]:
    """This package and the adapters that are loaded."""
    files = {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}
    for name, module in list(sys.modules.items()):
        if name.startswith("memtracker_adapter_") and getattr(module, "__file__", None):
            files.add(os.path.dirname(os.path.abspath(str(module.__file__))))
    return tuple(file + os.sep for file in files)


def _never_start_in_own_code(replacements: Replacements) -> None:
    """What stands for the CUDA runtime runs in the middle of everything, and must not become a compiled frame itself.
    Inside a compiled region it is inlined like other Python: hooks on modules look whether a compiler is at work."""
    own = _own_folders()
    check_file = trace_rules.check_file

    def check(filename: str | None, is_inlined_call: bool = False) -> Any:
        if filename is not None and filename.startswith(own):
            return trace_rules.SkipResult(not is_inlined_call, "the sidecar's own code")
        return check_file(filename, is_inlined_call)

    replacements.set(trace_rules, "check_file", check, "the sidecar's own frames are not the job's")


def _cached(function: Any) -> bool:
    return bool(trace_rules.is_lru_cache_wrapped_function(function))
