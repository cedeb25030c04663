// An expandable segment: addresses for 9/8 of the device, mapped to memory in granules as the program needs it.
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp, ExpandableSegment.

import { roundUp } from '../base/bytes.ts';
import type { BlockPool } from './block_pool.ts';
import { type AddressRange, DRIVER_PAGE, type DriverMemory } from './driver.ts';
import { Segment } from './segment.ts';

export class ExpandableSegment extends Segment {
  override readonly expandable = true;
  readonly address: number;
  /** Bytes of address space. */
  readonly size: number;
  /** Bytes of one cuMemCreate: 2 MiB in the small pool, the large segment size in the large pool. */
  readonly granule: number;
  readonly #driver: DriverMemory;

  /** @throws CudaDriverError when the granule is not a whole number of driver pages. */
  constructor(
    pool: BlockPool,
    stream: number,
    registration: number,
    granule: number,
    driver: DriverMemory,
    addresses: AddressRange,
  ) {
    super(pool, stream, registration);
    if (granule % DRIVER_PAGE !== 0) {
      throw new CudaDriverError(
        `invalid argument (a granule of ${granule} bytes is not a multiple of 2 MiB: choose an even large_segment_size_mb)`,
      );
    }
    this.granule = granule;
    this.size = roundUp(driver.total + Math.floor(driver.total / 8), granule);
    this.address = addresses.take(this.size);
    this.#driver = driver;
  }

  /**
   * Maps whole granules from `address`, which is at a granule's start.
   * @returns bytes mapped, at least `size`; 0 when the device has not enough memory, with nothing mapped.
   */
  map(size: number): number {
    const bytes = roundUp(size, this.granule);
    return this.#driver.tryTake(bytes) ? bytes : 0;
  }

  /** Unmaps the whole granules inside a range. @returns where they start and their bytes, 0 when there is none. */
  unmap(address: number, size: number): { address: number; size: number } {
    const offset = address - this.address;
    const begin = roundUp(offset, this.granule);
    const end = Math.floor((offset + size) / this.granule) * this.granule;
    if (begin >= end) return { address, size: 0 };
    this.#driver.give(end - begin);
    return { address: this.address + begin, size: end - begin };
  }
}

/** A failed driver call that is not about memory: PyTorch raises `RuntimeError: CUDA driver error`. */
export class CudaDriverError extends Error {
  constructor(problem: string) {
    super(`CUDA driver error: ${problem}`);
    this.name = 'CudaDriverError';
  }
}
