// Blocks that were freed during a CUDA graph capture while other streams used them. No event can be recorded or queried
// then, so they wait for the capture's end, or until the graph itself proves that their last use is over.
//
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp: free_locked, free_safe_blocks_in_capture, endAllocateToPool,
// insert_events_deferred_until_no_capture, remove_cudagraph_stream_uses.

import type { Block } from './block.ts';
import type { GraphCapture } from './graph_capture.ts';
import type { PrivatePool } from './private_pool.ts';
import type { StreamEventQueues } from './stream_events.ts';

type GraphMarkers = ReturnType<GraphCapture['freeMarkers']>;

export class DeferredFrees {
  readonly #events: StreamEventQueues;
  readonly #onFree: (block: Block) => void;
  /** With the graph nodes that end each block's use; without any, it waits for the capture's end. */
  readonly #blocks = new Map<Block, GraphMarkers>();
  /** Streams recorded on a block during a capture: the capture's end proves that they are done. */
  readonly #capturedUses = new Map<Block, Set<number>>();

  /** @param onFree gets each block that nobody uses any more */
  constructor(events: StreamEventQueues, onFree: (block: Block) => void) {
    this.#events = events;
    this.#onFree = onFree;
  }

  get isEmpty(): boolean {
    return this.#blocks.size === 0;
  }

  /** A stream was recorded on the block during a capture. */
  recordUse(block: Block, stream: number): void {
    const uses = this.#capturedUses.get(block) ?? new Set();
    this.#capturedUses.set(block, uses.add(stream));
  }

  add(block: Block, markers: GraphMarkers): void {
    this.#blocks.set(block, markers);
  }

  /** Frees the stream's blocks whose last use the graph proves to be over. */
  freeProven(capture: GraphCapture, stream: number): void {
    for (const [block, markers] of this.#blocks) {
      if (markers.length === 0 || block.segment.stream !== stream) continue;
      if (!capture.hasPassed(stream, markers)) continue;
      block.streamUses = null;
      this.#onFree(block);
      this.#blocks.delete(block);
    }
  }

  /**
   * No capture is under way (for blocks of `pool`, when given): uses recorded during one are over, older ones get
   * their events now.
   */
  settle(pool: PrivatePool | null = null): void {
    for (const block of this.#blocks.keys()) {
      if (pool !== null && block.segment.pool.owner !== pool) continue;
      this.#blocks.delete(block);
      this.#forgetCapturedUses(block);
      this.#events.insert(block);
      if (block.eventCount === 0) this.#onFree(block);
    }
  }

  #forgetCapturedUses(block: Block): void {
    const captured = this.#capturedUses.get(block);
    if (captured === undefined || block.streamUses === null) return;
    const older = block.streamUses.filter((stream) => !captured.has(stream));
    block.streamUses = older.length > 0 ? older : null;
    this.#capturedUses.delete(block);
  }
}
