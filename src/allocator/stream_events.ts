// Blocks that were freed while other streams still used them, each waiting for one event on each of those streams.
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp, insert_events, process_events,
// synchronize_and_free_events.

import type { Block } from './block.ts';
import { FlatHashMap } from './flat_hash_map.ts';
import type { PrivatePool } from './private_pool.ts';
import type { StreamClock } from './stream_clock.ts';

interface PendingEvent {
  readonly ticket: number;
  readonly block: Block;
}

/** Events of one stream, oldest first. */
interface StreamQueue {
  readonly stream: number;
  events: PendingEvent[];
}

export class StreamEventQueues {
  readonly #clock: StreamClock;
  /** Only streams with events. */
  readonly #queues: FlatHashMap<number, StreamQueue>;

  constructor(device: number, clock: StreamClock) {
    this.#clock = clock;
    this.#queues = new FlatHashMap((stream) => streamHash(device, stream));
  }

  get isEmpty(): boolean {
    return this.#queues.size === 0;
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
    this.#queues.retain((queue) => {
      let done = 0;
      while (
        done < queue.events.length &&
        this.#clock.isComplete(queue.stream, queue.events[done].ticket)
      ) {
        release(queue.events[done].block, onFree);
        done++;
      }
      queue.events.splice(0, done);
      return queue.events.length > 0;
    });
  }

  /** Waits for every event (only those of blocks of `pool` when given) and frees their blocks. */
  synchronize(pool: PrivatePool | null, onFree: (block: Block) => void): void {
    this.#queues.retain((queue) => {
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
      return others.length > 0;
    });
  }

  #queueOf(stream: number): StreamQueue {
    let queue = this.#queues.get(stream);
    if (queue === undefined) {
      queue = { stream, events: [] };
      this.#queues.add(stream, queue);
    }
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
