// A private pool: memory set apart for a `torch.cuda.MemPool` or for the graphs that share a capture pool.

import { BlockPool } from './block_pool.ts';

/** `[0, n]` for a MemPool, `[n, 0]` for a CUDA graph's pool, `[0, 0]` for the default pool (c10::MempoolId_t). */
export type MempoolId = readonly [number, number];

export const DEFAULT_POOL: MempoolId = Object.freeze([0, 0]) as MempoolId;

export interface PrivatePoolOptions {
  /** Each allocation keeps a whole segment. Ends when the last user releases the pool. */
  readonly noSplit?: boolean;
  /** Its cached blocks may serve the default pool before the program runs out of memory. */
  readonly useOnOom?: boolean;
}

export class PrivatePool {
  readonly id: MempoolId;
  readonly small = new BlockPool(true, this);
  readonly large = new BlockPool(false, this);
  /** Graphs, MemPool objects and open scopes that use it. At 0 its memory may be given back. */
  useCount = 1;
  /**
   * PyTorch's `cudaMalloc_count`: up for each allocation that got memory from the driver, down for each segment freed
   * or block unmapped. At 0, when nobody uses the pool, PyTorch deletes it.
   */
  driverAllocations = 0;
  /** Blocks handed out or waiting for a stream. */
  activeBlocks = 0;
  /** Each allocation keeps a whole segment. */
  noSplit: boolean;

  constructor(id: MempoolId, noSplit: boolean) {
    this.id = id;
    this.noSplit = noSplit;
  }
}

export function sameId(a: MempoolId, b: MempoolId): boolean {
  return a[0] === b[0] && a[1] === b[1];
}
