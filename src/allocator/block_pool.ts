// A pool of cached blocks: one for blocks up to 1 MiB and one for larger ones, by default and in each private pool.
// Within a pool, blocks of different streams never mix.

import type { Block } from './block.ts';
import { FreeIndex } from './free_index.ts';
import type { PrivatePool } from './private_pool.ts';

/** Cached blocks, and the unmapped parts of expandable segments, of one pool and stream. */
export class StreamBlocks {
  readonly stream: number;
  readonly free = new FreeIndex();
  /** By address. There are few: about one for each expandable segment and one for each hole. */
  readonly unmapped: Block[] = [];

  constructor(stream: number) {
    this.stream = stream;
  }

  insertUnmapped(block: Block): void {
    let at = this.unmapped.length;
    while (at > 0 && this.unmapped[at - 1].ptr > block.ptr) at--;
    this.unmapped.splice(at, 0, block);
  }

  removeUnmapped(block: Block): void {
    this.unmapped.splice(this.unmapped.indexOf(block), 1);
  }
}

export class BlockPool {
  readonly isSmall: boolean;
  /** Null for the default pools. */
  readonly owner: PrivatePool | null;
  /** Searches so far; counted only while garbage collection is on. */
  searches = 0;
  /** In the order of the stream's value, which is the order in which memory is given back. */
  readonly #streams: StreamBlocks[] = [];
  #lastUsed: StreamBlocks | null = null;

  constructor(isSmall: boolean, owner: PrivatePool | null) {
    this.isSmall = isSmall;
    this.owner = owner;
  }

  forStream(stream: number): StreamBlocks {
    const last = this.#lastUsed;
    if (last !== null && last.stream === stream) return last;
    let at = 0;
    while (at < this.#streams.length && this.#streams[at].stream < stream) at++;
    let found = this.#streams[at];
    if (found === undefined || found.stream !== stream) {
      found = new StreamBlocks(stream);
      this.#streams.splice(at, 0, found);
    }
    this.#lastUsed = found;
    return found;
  }

  /** Caches a block; its age starts again. */
  insertFree(block: Block): void {
    block.searchesAtCaching = this.searches;
    block.segment.streamBlocks.free.insert(block);
  }

  /** Every cached block: by stream, then in the order of preference. */
  *freeBlocks(): Generator<Block> {
    for (const blocks of this.#streams) yield* blocks.free;
  }

  freeBytes(): number {
    let sum = 0;
    for (const block of this.freeBlocks()) sum += block.size;
    return sum;
  }
}
