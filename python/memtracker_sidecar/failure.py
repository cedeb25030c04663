"""An exception of the training code, told in one paragraph and an `error` event."""

from __future__ import annotations

import traceback
from typing import Any

import torch

from memtracker_sidecar import protocol
from memtracker_sidecar.recorder import StorageRecorder


def describe_tensor(value: Any) -> str:
    """`bfloat16[8, 4096] cuda:0`, or the repr of anything that is not a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} {value.device}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe_tensor(item) for item in value[:4]) + (", …]" if len(value) > 4 else "]")
    return repr(value)[:60]


def error_event(error: BaseException, recorder: StorageRecorder | None, module: str, *, fatal: bool = True) -> protocol.Event:
    """What happened, in which operator on which shapes, in which module."""
    detail: dict[str, Any] = {"module": module}
    cause = f"{type(error).__name__}: {error}".strip()
    running = recorder.last_operator if recorder is not None else None
    if running is not None:
        func, args, kwargs = running
        shapes = [describe_tensor(argument) for argument in args]
        shapes += [f"{name}={describe_tensor(value)}" for name, value in kwargs.items()]
        detail |= {"operator": str(func), "arguments": shapes}
        cause += f" The operator was {func} on {', '.join(shapes)}."
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/torch/" not in frame.filename and "memtracker_sidecar" not in frame.filename]
    if own:
        place = own[-1]
        detail["place"] = f"{place.filename}:{place.lineno} in {place.name}"
        cause += f" It was raised from {detail['place']}."
    if module:
        cause += f" The module was {module}."
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return protocol.error(type(error).__name__, cause, text, detail, fatal)

