// A segment: a range of device addresses obtained from the driver, cut into blocks. A fixed segment is one cudaMalloc.
// An expandable one (expandable_segment.ts) is one address reservation that is mapped and unmapped in granules.

import type { Block } from './block.ts';
import type { BlockPool, StreamBlocks } from './block_pool.ts';

export class Segment {
  readonly pool: BlockPool;
  /** `cudaStream_t` value of the stream whose allocations it serves. */
  readonly stream: number;
  /** Creation number: between free blocks of one size the oldest segment is taken first. */
  readonly registration: number;
  readonly expandable: boolean = false;
  /** Cached and unmapped blocks of this pool and stream. */
  readonly streamBlocks: StreamBlocks;
  /** The block at the lowest address. Set by the first block's `linkBetween`. */
  head: Block | null = null;

  constructor(pool: BlockPool, stream: number, registration: number) {
    this.pool = pool;
    this.stream = stream;
    this.registration = registration;
    this.streamBlocks = pool.forStream(stream);
  }
}
