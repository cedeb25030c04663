// Host memory as a Device: CPU tensors are counted apart from the GPU's, without an allocator model. requested, allocated, active
// and reserved are all the bytes of live storages.

import type { Allocation, Device, DeviceCounters } from './device.ts';

export class HostMemory implements Device {
  #live = 0;
  readonly counters: DeviceCounters;

  constructor() {
    const live = () => this.#live;
    this.counters = {
      get requested() {
        return live();
      },
      get allocated() {
        return live();
      },
      get active() {
        return live();
      },
      get reserved() {
        return live();
      },
      externalLow: 0,
      external: 0,
      externalHigh: 0,
    };
  }

  malloc(bytes: number): Allocation {
    this.#live += bytes;
    return { size: bytes };
  }

  free(allocation: Allocation): void {
    this.#live -= allocation.size;
  }

  recordStream(): void {}
  recordEvent(): void {}
  waitEvent(): void {}
  synchronizeEvent(): void {}
  synchronizeStream(): void {}
  synchronize(): void {}
  emptyCache(): void {}
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
