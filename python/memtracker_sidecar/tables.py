"""Interned text, calling contexts and tensor shapes: sent once, referred to by number.

A Python stack is a path in a calling-context tree. Finding the path of the current stack costs one dictionary look-up a
frame: the key is (parent node, code object, instruction), and the line number, which CPython has to decode from a
table, is only computed the first time a key is seen.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import EventSink

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Frames that stand between a user's line and the dispatcher on every call and say nothing about where memory comes
# from. FSDP, checkpoint, the optimizers and autograd.Function bodies stay.
_SILENT_PARTS = tuple(
    part.replace("/", os.sep)
    for part in (
        "/torch/_ops.py",
        "/torch/_compile.py",
        "/torch/_subclasses/",
        "/torch/_prims_common/",
        "/torch/utils/_python_dispatch.py",
        "/torch/utils/_contextlib.py",
        "/torch/utils/_pytree.py",
        "/torch/nn/modules/module.py",
        "/torch/_dynamo/eval_frame.py",
        "/torch/_dynamo/external_utils.py",
        "/torch/autograd/graph.py",
        "/torch/overrides.py",
        "/torch/_library/",
        "/torch/_inductor/async_compile.py",
        "/torch/distributed/c10d_logger.py",
    )
)


class Tables:
    """The intern tables of one run. Not locked: a race costs a duplicate row, never a wrong one."""

    def __init__(self, sink: EventSink, stack_depth: int) -> None:
        self._sink = sink
        self._stack_depth = stack_depth
        self._strings: dict[str, int] = {"": 0}
        self._tensors: dict[tuple[Any, ...], int] = {}
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._lines: dict[tuple[int, int, int, int], int] = {}
        self._codes: dict[int, tuple[int, int] | None] = {}
        self._kept_codes: list[CodeType] = []
        self._node_count = 0

    def string(self, text: str) -> int:
        """The id of a text; 0 is the empty one."""
        found = self._strings.get(text)
        if found is None:
            found = self._strings[text] = len(self._strings)
            self._sink.emit(protocol.string(found, text))
        return found

    def tensor(self, dtype: object, layout: object, shape: tuple[int, ...]) -> int:
        """The id of what a tensor looks like."""
        key = (dtype, layout, shape)
        found = self._tensors.get(key)
        if found is None:
            found = self._tensors[key] = len(self._tensors) + 1
            self._sink.emit(
                protocol.tensor(
                    found,
                    self.string(str(dtype).removeprefix("torch.")),
                    self.string(str(layout).removeprefix("torch.")),
                    [int(size) for size in shape],
                )
            )
        return found

    def stack(self, frame: FrameType | None = None) -> int:
        """The id of the Python stack that ends at `frame` (default: the caller's); 0 when stacks are off."""
        depth = self._stack_depth
        if depth == 0:
            return 0
        if frame is None:
            frame = sys._getframe(1)
        codes = self._codes
        path: list[tuple[int, int, FrameType]] = []
        walk: FrameType | None = frame
        while walk is not None and depth:
            code = walk.f_code
            key = id(code)
            try:
                known = codes[key]
            except KeyError:
                known = self._code(code)
            if known is not None:
                path.append((key, walk.f_lasti, walk))
                depth -= 1
            walk = walk.f_back
        nodes = self._nodes
        node = 0
        for key, instruction, walk in reversed(path):
            step = (node, key, instruction)
            child = nodes.get(step)
            if child is None:
                child = self._new_node(step, walk)
            node = child
        return node

    def _code(self, code: CodeType) -> tuple[int, int] | None:
        """File and function of a code object, or None when its frames are not recorded."""
        self._kept_codes.append(code)  # its id is a key for as long as the run lasts
        file = code.co_filename
        if file.startswith((_PACKAGE, "<frozen ")) or any(part in file for part in _SILENT_PARTS):
            known = None
        else:
            known = (self.string(file), self.string(getattr(code, "co_qualname", code.co_name)))
        self._codes[id(code)] = known
        return known

    def _new_node(self, step: tuple[int, int, int], frame: FrameType) -> int:
        parent, key, _ = step
        known = self._codes[key]
        assert known is not None
        file, function = known
        line = frame.f_lineno or 0
        place = (parent, file, function, line)
        node = self._lines.get(place)
        if node is None:
            self._node_count += 1
            node = self._lines[place] = self._node_count
            self._sink.emit(protocol.stack(node, parent, file, function, line))
        self._nodes[step] = node
        return node
