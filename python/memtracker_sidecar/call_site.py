"""Whose code a frame is: the user's, or PyTorch's, or ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_own_folders: list[str] = [os.path.dirname(os.path.abspath(__file__)) + os.sep]


def add_own_folder(folder: Path) -> None:
    """Frames of files under `folder` (an adapter) are ours."""
    _own_folders.append(str(folder.resolve()) + os.sep)


def is_users(file: str) -> bool:
    """Whether a file is neither PyTorch's, nor ours, nor the interpreter's own."""
    return not (
        file.startswith(("<", _TORCH))
        or file.startswith(tuple(_own_folders))
        or "/runpy.py" in file
    )


def call_site(frame: FrameType | None = None) -> str:
    """`file:line` of the innermost frame of the user's code, or an empty text."""
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
