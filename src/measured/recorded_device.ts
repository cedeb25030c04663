// A device that does not model anything: it answers a replay with what a real allocator recorded.
//
// The trace of a measured run (history_trace.ts) has one row for each step of the history. Every call of the replay moves a
// cursor to that step and checks that the call is the one that was recorded.

import {
  type Allocation,
  type Device,
  type DeviceCounters,
  DeviceOutOfMemory,
} from '../device/device.ts';
import type { EventOf } from '../protocol/events.ts';
import { Float64Column } from '../trace/columns.ts';
import type { History } from './history/history.ts';
import { HistoryCursor } from './history/history_cursor.ts';

/** What one device call of the replay stands for. */
export interface RecordedStep {
  /**
   * Rows of the history before this one have happened when the call returns; below zero: baseline block `-1 - until` is
   * there.
   */
  readonly until: number;
  /** Block handed out; 0 for calls that hand out none. NaN when only bounds are known. */
  readonly block: number;
  /** The run ended here, out of memory. */
  readonly outOfMemory?: { readonly requestedBytes: number; readonly message: string };
}

/** Steps in the order of device calls, as flat columns: a history can have millions. */
export class RecordedSteps {
  readonly #until = new Float64Column();
  readonly #block = new Float64Column();
  #outOfMemory: RecordedStep['outOfMemory'];

  get length(): number {
    return this.#until.length;
  }

  push(until: number, block = 0): void {
    this.#until.push(until);
    this.#block.push(block);
  }

  /** The last step: the allocation that failed and ended the run. */
  pushOutOfMemory(until: number, requestedBytes: number, message: string): void {
    this.push(until);
    this.#outOfMemory = { requestedBytes, message };
  }

  at(index: number): RecordedStep {
    const step = { until: this.#until.view()[index], block: this.#block.view()[index] };
    return this.#outOfMemory !== undefined && index === this.length - 1
      ? { ...step, outOfMemory: this.#outOfMemory }
      : step;
  }
}

export class RecordedDevice implements Device {
  readonly counters: DeviceCounters;
  readonly #steps: RecordedSteps;
  readonly #cursor: HistoryCursor;
  #next = 0;
  #external = Number.NaN;

  constructor(history: History, steps: RecordedSteps) {
    const cursor = new HistoryCursor(history);
    const external = (): number => this.#external;
    // Blocks that waited for a stream have no call of their own: they are there from the start.
    history.baselineBlocks.forEach((block, index) => {
      if (block.pending) cursor.addBaseline(index);
    });
    this.#steps = steps;
    this.#cursor = cursor;
    this.counters = {
      get requested() {
        return cursor.requested;
      },
      get allocated() {
        return cursor.allocatedLow === cursor.allocatedHigh ? cursor.allocatedLow : Number.NaN;
      },
      get active() {
        return cursor.activeLow === cursor.activeHigh ? cursor.activeLow : Number.NaN;
      },
      get reserved() {
        return cursor.reserved;
      },
      get external() {
        return external();
      },
      get externalLow() {
        return external();
      },
      get externalHigh() {
        return external();
      },
    };
  }

  malloc(): Allocation {
    const step = this.#step();
    if (step.outOfMemory !== undefined) {
      throw new DeviceOutOfMemory(
        'allocator',
        step.outOfMemory.requestedBytes,
        step.outOfMemory.message,
      );
    }
    return { size: step.block };
  }

  free(): void {
    this.#step();
  }

  emptyCache(): void {
    this.#step();
  }

  synchronize(): void {
    this.#step();
  }

  /** A reading of driver-used memory at a phase boundary; it holds for that instant only. */
  allocExternal(event: EventOf<'external_alloc'>): void {
    this.#external = event.bytes;
  }

  freeExternal(): void {
    this.#external = Number.NaN;
  }

  // What a recording says nothing about.
  recordStream(): void {}
  recordEvent(): void {}
  waitEvent(): void {}
  synchronizeEvent(): void {}
  synchronizeStream(): void {}
  setFraction(): void {}
  applySettings(): void {}
  createPool(): void {}
  beginPool(): void {}
  endPool(): void {}
  releasePool(): void {}
  createCommunicator(): void {}
  destroyCommunicator(): void {}
  beginCollective(): void {}
  endCollective(): void {}

  #step(): RecordedStep {
    if (this.#next >= this.#steps.length) {
      throw new Error('the replay makes more device calls than were recorded');
    }
    const step = this.#steps.at(this.#next++);
    if (step.until < 0) this.#cursor.addBaseline(-1 - step.until);
    else this.#cursor.moveTo(step.until);
    this.#external = Number.NaN;
    return step;
  }
}
