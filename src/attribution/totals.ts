// Bytes allocated over the whole run (not live at once): how much each operator, module and stack pushes through the allocator.

import { EVENTS } from '../protocol/events.ts';
import type { Timeline } from '../timeline/timeline.ts';
import type { NamedShare, Share, StackShare } from './attribution.ts';

const ALLOC = EVENTS.alloc.code;
const RESIZE = EVENTS.resize.code;

export interface Totals {
  readonly all: Share;
  /** Sorted by bytes, largest first. */
  readonly operators: readonly NamedShare[];
  readonly stacks: readonly StackShare[];
}

export function totalsOf(timeline: Timeline): Totals {
  const { trace, blockBytes, length, deviceId } = timeline;
  const { events } = trace;
  const all: Share = { bytes: 0, blocks: 0 };
  const operators = new Map<number, NamedShare>();
  const stacks = new Map<number, StackShare>();
  for (let i = 0; i < length; i++) {
    if ((events.code[i] !== ALLOC && events.code[i] !== RESIZE) || events.device[i] !== deviceId) {
      continue;
    }
    const bytes = blockBytes[i];
    if (bytes === 0) continue;
    const op = events.op[i];
    const stack = events.stack[i];
    add(all, bytes);
    add(
      ensure(operators, op, () => ({ name: trace.strings[op] ?? '', bytes: 0, blocks: 0 })),
      bytes,
    );
    // Fits a double exactly: ids are below 2^32, and a trace has far fewer than 2^21 operators.
    const key = stack * 2 ** 21 + op;
    add(
      ensure(stacks, key, () => ({ stack, op, bytes: 0, blocks: 0 })),
      bytes,
    );
  }
  const largest = (a: Share, b: Share) => b.bytes - a.bytes;
  return {
    all,
    operators: [...operators.values()].sort(largest),
    stacks: [...stacks.values()].sort(largest),
  };
}

function add(share: Share, bytes: number): void {
  share.bytes += bytes;
  share.blocks++;
}

function ensure<K, V>(map: Map<K, V>, key: K, create: () => V): V {
  let value = map.get(key);
  if (value === undefined) {
    value = create();
    map.set(key, value);
  }
  return value;
}
