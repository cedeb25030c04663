// A block: a contiguous piece of a segment, handed out to the program, waiting for a stream, or cached.

import type { Segment } from './segment.ts';

/**
 * Blocks of one segment form a doubly linked list in address order. The allocator owns every field; a program that
 * was handed a block may read it until it frees it.
 */
export class Block {
  /** Device address. */
  ptr: number;
  /** Bytes, a multiple of 512. */
  size: number;
  /** Bytes that the program asked for. Kept after the free: PyTorch's snapshots show the stale value. */
  requested = 0;
  readonly segment: Segment;
  prev: Block | null = null;
  next: Block | null = null;
  /** In the hands of the program. */
  allocated = false;
  /** Backed by device memory. False only inside expandable segments. */
  mapped = true;
  /** Events, one for each other stream that used it, that have to complete before it is free. */
  eventCount = 0;
  /** Streams other than its own that used it since it was handed out (`record_stream`). */
  streamUses: number[] | null = null;
  /** The pool's search counter when the block was last cached: its age is counted from here. */
  searchesAtCaching = 0;

  constructor(segment: Segment, ptr: number, size: number) {
    this.segment = segment;
    this.ptr = ptr;
    this.size = size;
  }

  /** Part of a segment, not the whole. */
  get isSplit(): boolean {
    return this.prev !== null || this.next !== null;
  }

  /** Allocated, or freed but still waiting for a stream. */
  get isActive(): boolean {
    return this.allocated || this.eventCount > 0 || this.streamUses !== null;
  }

  /** Searches of the pool since the block was cached; counted only while garbage collection is on. */
  get age(): number {
    return this.segment.pool.searches - this.searchesAtCaching;
  }

  /** Puts this block between two neighbours. */
  linkBetween(prev: Block | null, next: Block | null): void {
    this.prev = prev;
    this.next = next;
    if (prev !== null) prev.next = this;
    else this.segment.head = this;
    if (next !== null) next.prev = this;
  }
}
