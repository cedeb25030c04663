// A device without an allocator model: blocks are rounded to 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize) and
// reserved is the largest allocated so far in whole 2 MiB segments, a lower bound. External memory is not known.

import { MiB, roundUp } from '../base/bytes.ts';
import { type Allocation, type Device, type DeviceCounters, DeviceOutOfMemory } from './device.ts';

export class RoundingDevice implements Device {
  readonly counters = {
    requested: 0,
    allocated: 0,
    active: 0,
    reserved: 0,
    externalLow: Number.NaN,
    external: Number.NaN,
    externalHigh: Number.NaN,
  } satisfies DeviceCounters;
  readonly #capacity: number;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  malloc(bytes: number): Allocation & { requested: number } {
    const size = Math.max(512, roundUp(bytes, 512));
    const reserved = roundUp(this.counters.allocated + size, 2 * MiB);
    if (reserved > this.#capacity) {
      throw new DeviceOutOfMemory('allocator', bytes, 'CUDA out of memory.');
    }
    this.counters.requested += bytes;
    this.counters.allocated += size;
    this.counters.active += size;
    this.counters.reserved = Math.max(this.counters.reserved, reserved);
    return { size, requested: bytes };
  }

  free(allocation: Allocation): void {
    this.counters.requested -= (allocation as Allocation & { requested: number }).requested;
    this.counters.allocated -= allocation.size;
    this.counters.active -= allocation.size;
  }

  emptyCache(): void {
    this.counters.reserved = roundUp(this.counters.allocated, 2 * MiB);
  }

  recordStream(): void {}
  recordEvent(): void {}
  waitEvent(): void {}
  synchronizeEvent(): void {}
  synchronizeStream(): void {}
  synchronize(): void {}
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
  allocExternal(): void {}
  freeExternal(): void {}
}
