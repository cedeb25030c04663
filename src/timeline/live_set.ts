// Which storages were live at an instant. Recomputed from the events: a scan of a million events takes a few milliseconds.

import { EVENTS } from '../protocol/events.ts';
import type { Timeline } from './timeline.ts';

const ALLOC = EVENTS.alloc.code;
const FREE = EVENTS.free.code;
const RESIZE = EVENTS.resize.code;
const OWNER = EVENTS.owner.code;

/** One live block. A storage that is being resized has two. */
export interface LiveBlock {
  readonly storage: number;
  /** The alloc or resize event that made the block. */
  readonly madeBy: number;
  /** The storage's alloc event (shape, dtype, first stack). */
  readonly bornAt: number;
  /** Bytes asked for. */
  readonly requested: number;
  /** Bytes of the allocator's block. */
  readonly block: number;
  /**
   * Latest owner category at the instant (index into protocol OWNERS) and the string id of its name. A block that nobody
   * has claimed yet has the owner that claims it first: a gradient is one from its allocation on, though autograd hands it
   * over only later.
   */
  readonly owner: number;
  readonly ownerName: number;
}

/**
 * The blocks live during event `at` (an alloc's own block included; a free's block is already gone; of a resize both blocks),
 * in order of storage ids. The sum of `block` equals `allocated` at `at`, but for blocks without a storage; that of
 * `requested` equals `requested` when no freed block waits for a stream: PyTorch's requested_bytes, as active_bytes, counts those until
 * they can be used again (CUDACachingAllocator.cpp, free_block). Where the device was full, the block that was not given does not count.
 */
export function liveAt(timeline: Timeline, at: number): LiveBlock[] {
  const { events, storageCount } = timeline.trace;
  const bornAt = new Int32Array(storageCount).fill(-1);
  const madeBy = new Int32Array(storageCount).fill(-1);
  const owner = new Uint8Array(storageCount);
  const ownerName = new Uint32Array(storageCount);
  const failed = timeline.outOfMemory?.event;
  const end = Math.min(at, timeline.length - 1);
  const last = end === failed ? end - 1 : end;
  let overlapping = -1;
  for (let i = 0; i <= last; i++) {
    const storage = events.subject[i];
    switch (events.code[i]) {
      case ALLOC:
        if (events.device[i] === timeline.deviceId) {
          bornAt[storage] = i;
          madeBy[storage] = i;
        }
        break;
      case FREE:
        bornAt[storage] = -1;
        break;
      case RESIZE:
        if (bornAt[storage] !== -1) {
          if (i === last) overlapping = madeBy[storage];
          madeBy[storage] = i;
        }
        break;
      case OWNER:
        owner[storage] = events.pool[i];
        ownerName[storage] = events.op[i];
        break;
    }
  }
  for (let i = last + 1; i < events.length; i++) {
    const storage = events.subject[i];
    if (events.code[i] === OWNER && owner[storage] === 0 && bornAt[storage] !== -1) {
      owner[storage] = events.pool[i];
      ownerName[storage] = events.op[i];
    }
  }
  const live: LiveBlock[] = [];
  for (let storage = 1; storage < storageCount; storage++) {
    if (bornAt[storage] === -1) continue;
    const made = [madeBy[storage]];
    if (events.code[last] === RESIZE && events.subject[last] === storage && overlapping !== -1) {
      made.unshift(overlapping);
    }
    for (const event of made) {
      if (events.bytes[event] === 0) continue;
      live.push({
        storage,
        madeBy: event,
        bornAt: bornAt[storage],
        requested: events.bytes[event],
        block: timeline.blockBytes[event],
        owner: owner[storage],
        ownerName: ownerName[storage],
      });
    }
  }
  return live;
}
