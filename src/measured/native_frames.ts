// What the C++ frames of a recorded stack tell: which operator allocated, and in which pass.
//
// A snapshot's stack mixes C++ frames (the allocator, ATen, autograd, CPython itself) with Python's. Reports show Python;
// an estimate has no others. The C++ ones are read for the operator and the pass and then left out.

import type { Pass } from '../protocol/events.ts';
import type { Frame } from './snapshot/stack_table.ts';

const NATIVE_FILE = /^\?\?$|\.(c|cc|cpp|cxx|cu|cuh|h|hpp|S|so)(\.|$)/;

/** A frame of compiled code. */
export function isNative(frame: Frame): boolean {
  return NATIVE_FILE.test(frame.filename) || frame.filename === '';
}

/** The dispatcher's entry of an operator: `at::_ops::mm::call(...)`. Source: torchgen, generated Operators_*.cpp. */
const OPERATOR = /\bat::_ops::(\w+)::(?:call|redispatch)\b/;

/** Operators that only make room for the one that called them. */
const EMPTY = /^aten::(new_)?empty(_like|_strided)?$/;

/**
 * The operator that allocated: `aten::mm` (without the overload, as a trace names operators); '' when no frame says. Frames
 * innermost first.
 */
export function operatorOf(frames: readonly Frame[]): string {
  let room = '';
  for (const frame of frames) {
    const match = OPERATOR.exec(frame.name);
    if (match === null) continue;
    // torchgen joins name and overload with `_`; only the usual overloads can be told from the name.
    const name = `aten::${match[1].replace(/(?<=.)_(?:[A-Z]\w*|out|dim|int|dtype|dimname|memory_format)$/, '')}`;
    if (!EMPTY.test(name)) return name;
    room ||= name;
  }
  return room;
}

/** What a stack was doing, from its frames innermost first. */
export function passOf(frames: readonly Frame[]): Pass {
  let backward = false;
  let recompute = false;
  let forward = false;
  for (const frame of frames) {
    if (/\/torch\/optim\/|\/optimizers?\/.*optim/.test(frame.filename)) return 'optimizer';
    if (frame.name.startsWith('torch::autograd::Engine::')) backward = true;
    else if (/\/torch\/autograd\/graph\.py$/.test(frame.filename) && /engine/i.test(frame.name)) {
      backward = true;
    } else if (/\/torch\/utils\/checkpoint\.py$/.test(frame.filename)) {
      if (/recompute|unpack_hook|backward/.test(frame.name)) recompute = true;
    } else if (/\/torch\/nn\/modules\/module\.py$/.test(frame.filename)) forward = true;
  }
  if (recompute) return 'recompute';
  if (backward) return 'backward';
  return forward ? 'forward' : 'none';
}
