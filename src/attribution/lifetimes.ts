// When each block of a device was made and when it went away, found in one pass. A storage has one block, and one more for each
// resize; a block is known by the event that made it.

import { EVENTS } from '../protocol/events.ts';
import type { Timeline } from '../timeline/timeline.ts';

const ALLOC = EVENTS.alloc.code;
const FREE = EVENTS.free.code;
const RESIZE = EVENTS.resize.code;

/** The block is live at the end of the trace. */
export const NEVER = -1;

export interface Lifetimes {
  /** By event: for one that made a block, the free or resize that ended it, or NEVER. 0 for every other event. */
  readonly diedAt: Int32Array;
}

export function lifetimes(timeline: Timeline): Lifetimes {
  const { events, storageCount } = timeline.trace;
  const diedAt = new Int32Array(timeline.length);
  const madeBy = new Int32Array(storageCount).fill(-1);
  for (let i = 0; i < timeline.length; i++) {
    const code = events.code[i];
    if (code !== ALLOC && code !== FREE && code !== RESIZE) continue;
    if (events.device[i] !== timeline.deviceId) continue;
    const storage = events.subject[i];
    if (code !== ALLOC && madeBy[storage] !== -1) diedAt[madeBy[storage]] = i;
    if (code === FREE) {
      madeBy[storage] = -1;
    } else {
      madeBy[storage] = i;
      diedAt[i] = NEVER;
    }
  }
  return { diedAt };
}
