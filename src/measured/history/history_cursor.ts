// Walks a history and knows the allocator's counters at every entry.

import { ActionCode } from '../snapshot/snapshot.ts';
import type { History } from './history.ts';

const A = ActionCode;

export class HistoryCursor {
  readonly #history: History;
  readonly #action: Uint8Array;
  readonly #size: Float64Array;
  /** The next row that has not been taken in. */
  row = 0;
  /** Bytes asked for by blocks that are live or wait for a stream (torch's `requested_bytes`). */
  requested = 0;
  reserved: number;
  allocatedLow = 0;
  allocatedHigh = 0;
  activeLow = 0;
  activeHigh = 0;

  constructor(history: History) {
    this.#history = history;
    const last = history.first + history.count;
    this.#action = history.snapshot.entries.action.view().subarray(history.first, last);
    this.#size = history.snapshot.entries.size.view().subarray(history.first, last);
    this.reserved = history.reservedAtStart;
  }

  /**
   * Takes in one block that was there before the history. All of them must be in before the first row; they come one by one so
   * that a replay can show each.
   */
  addBaseline(index: number): void {
    const block = this.#history.baselineBlocks[index];
    this.requested += block.requested;
    this.activeLow += block.low;
    this.activeHigh += block.high;
    if (block.pending) return;
    this.allocatedLow += block.low;
    this.allocatedHigh += block.high;
  }

  /** Takes in every row before `row`. Rows behind the cursor are left alone. */
  moveTo(row: number): void {
    while (this.row < row) this.#step(this.row++);
  }

  #step(row: number): void {
    const size = this.#size[row];
    switch (this.#action[row]) {
      case A.alloc: {
        const low = this.#history.blockLow[row];
        const high = this.#history.blockHigh[row];
        this.requested += size;
        this.allocatedLow += low;
        this.allocatedHigh += high;
        this.activeLow += low;
        this.activeHigh += high;
        return;
      }
      case A.free_requested: {
        const target = this.#history.target[row];
        this.allocatedLow -= this.#low(target);
        this.allocatedHigh -= this.#high(target);
        return;
      }
      case A.free_completed: {
        const target = this.#history.target[row];
        this.requested -= size;
        this.activeLow -= this.#low(target);
        this.activeHigh -= this.#high(target);
        return;
      }
      case A.segment_alloc:
      case A.segment_map:
        this.reserved += size;
        return;
      case A.segment_free:
      case A.segment_unmap:
        this.reserved -= size;
        return;
    }
  }

  #low(target: number): number {
    const { blockLow, baselineBlocks } = this.#history;
    return target >= 0 ? blockLow[target] : baselineBlocks[-1 - target].low;
  }

  #high(target: number): number {
    const { blockHigh, baselineBlocks } = this.#history;
    return target >= 0 ? blockHigh[target] : baselineBlocks[-1 - target].high;
  }
}
