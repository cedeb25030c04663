// Blocks that were freed while other streams still used them, each waiting for one event on each of those streams.
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp, insert_events, process_events,
// synchronize_and_free_events.

import type { Block } from './block.ts';
import { hashRank, type PrivatePool } from './private_pool.ts';
import type { StreamClock } from './stream_clock.ts';

interface PendingEvent {
  readonly ticket: number;
  readonly block: Block;
}

/** Events of one stream, oldest first. */
interface StreamQueue {
  readonly stream: number;
  readonly rank: bigint;
  events: PendingEvent[];
}

export class StreamEventQueues {
  readonly #device: number;
  readonly #clock: StreamClock;
  /** In the order of PyTorch's hash table of streams, which is the order in which blocks come back. */
  #queues: StreamQueue[] = [];

  constructor(device: number, clock: StreamClock) {
    this.#device = device;
    this.#clock = clock;
  }

  get isEmpty(): boolean {
    return this.#queues.length === 0;
  }

  /** Records an event on each stream that used the block, and forgets those streams. */
  insert(block: Block): void {
    const streams = block.streamUses ?? [];
    block.streamUses = null;
    for (const stream of streams) {
      block.eventCount++;
      this.#queueOf(stream).events.push({ ticket: this.#clock.record(stream), block });
    }
  }

  /** Takes the complete events from the front of each queue; `onFree` gets each block with no event left. */
  poll(onFree: (block: Block) => void): void {
    for (const queue of this.#queues) {
      let done = 0;
      while (
        done < queue.events.length &&
        this.#clock.isComplete(queue.stream, queue.events[done].ticket)
      ) {
        release(queue.events[done].block, onFree);
        done++;
      }
      if (done > 0) queue.events.splice(0, done);
    }
    this.#dropEmpty();
  }

  /** Waits for every event (only those of blocks of `pool` when given) and frees their blocks. */
  synchronize(pool: PrivatePool | null, onFree: (block: Block) => void): void {
    for (const queue of this.#queues) {
      const others: PendingEvent[] = [];
      for (const event of queue.events) {
        if (pool !== null && event.block.segment.pool.owner !== pool) {
          others.push(event);
          continue;
        }
        this.#clock.completeUpTo(queue.stream, event.ticket);
        release(event.block, onFree);
      }
      queue.events = others;
    }
    this.#dropEmpty();
  }

  #dropEmpty(): void {
    this.#queues = this.#queues.filter((queue) => queue.events.length > 0);
  }

  #queueOf(stream: number): StreamQueue {
    const found = this.#queues.find((queue) => queue.stream === stream);
    if (found !== undefined) return found;
    const rank = hashRank(streamHash(this.#device, stream));
    const queue: StreamQueue = { stream, rank, events: [] };
    const at = this.#queues.findIndex((other) => other.rank > rank);
    this.#queues.splice(at < 0 ? this.#queues.length : at, 0, queue);
    return queue;
  }
}

function release(block: Block, onFree: (block: Block) => void): void {
  block.eventCount--;
  if (block.eventCount === 0) onFree(block);
}

/** c10/core/Stream.h, Stream::hash of a CUDA stream: device type 1, device index, 48 bits of the stream id. */
function streamHash(device: number, stream: number): bigint {
  return (1n << 56n) | (BigInt(device) << 48n) | BigInt.asUintN(48, BigInt(stream));
}
