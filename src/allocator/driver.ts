// What stands under the caching allocator: the device's memory behind cudaMalloc and cuMemCreate, and the address
// ranges that the driver hands out. The memory is a seam: NCCL, the CUDA context and other processes take from the
// same device while the allocator runs, so whoever owns the device implements `DriverMemory`, and an out-of-memory
// error falls at the event where it really would.

import { MiB, roundUp, TiB } from '../base/bytes.ts';

/** One GPU's memory as the driver sees it. All figures are bytes. */
export interface DriverMemory {
  /** `cudaDeviceProp.totalGlobalMem` and the total of `cudaMemGetInfo`. */
  readonly total: number;
  /** In use on the device by everybody: this allocator, the rest of this process, other processes. */
  used(): number;
  /** In use by this process, as NVML reports it (the "this process has … memory in use" of PyTorch's message). */
  usedByProcess(): number;
  /** Takes `bytes` when they are free; false is `cudaErrorMemoryAllocation`. Called with whole driver pages. */
  tryTake(bytes: number): boolean;
  /** Gives back `bytes` that `tryTake` took. */
  give(bytes: number): void;
}

/** The driver allocates device memory in pages of 2 MiB: cudaMalloc takes `size` rounded up to it. */
export const DRIVER_PAGE = 2 * MiB;

/** A device that holds this allocator and a settable amount of memory of others. */
export class FixedDriverMemory implements DriverMemory {
  readonly total: number;
  /** Bytes in use outside this allocator. */
  external: number;
  #taken = 0;

  constructor(total: number, external = 0) {
    this.total = total;
    this.external = external;
  }

  /** Bytes that the allocator holds. */
  get taken(): number {
    return this.#taken;
  }

  used(): number {
    return this.#taken + this.external;
  }

  usedByProcess(): number {
    return this.#taken;
  }

  tryTake(bytes: number): boolean {
    if (this.#taken + this.external + bytes > this.total) return false;
    this.#taken += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#taken -= bytes;
  }
}

/** `cudaMemGetInfo`'s free bytes: never negative, even where others use more than the device has. */
export function freeMemory(driver: DriverMemory): number {
  return Math.max(0, driver.total - driver.used());
}

/** Addresses up to here are exact in a double. */
const PiB = 1024 * TiB;

/**
 * Hands out device addresses: upward, in steps of the driver page, never twice. Decisions of the allocator depend on
 * addresses in one place only, the order of several expandable segments of one pool and stream, where "upward" means
 * "oldest first". A long replay can use up a range that a real driver would use again; it goes on in `overflow`, which lies
 * above everything.
 */
export class AddressRange {
  #next: number;
  #end: number;
  readonly #overflow: number;

  constructor(start: number, size: number, overflow: number) {
    this.#next = start;
    this.#end = start + size;
    this.#overflow = overflow;
  }

  /** @throws RangeError when the overflow of 2 PiB is used up too. */
  take(size: number): number {
    const bytes = roundUp(size, DRIVER_PAGE);
    if (this.#next + bytes > this.#end && this.#end < this.#overflow) {
      this.#next = this.#overflow;
      this.#end = this.#overflow + 2 * PiB;
    }
    const address = this.#next;
    this.#next += bytes;
    if (this.#next > this.#end) throw new RangeError('the device address range is used up');
    return address;
  }
}

/** Where cudaMalloc of device `device` starts: 16 TiB, and 4 TiB for each device. */
export function deviceAddresses(device: number): AddressRange {
  return new AddressRange(16 * TiB + device * 4 * TiB, 4 * TiB, 2 * PiB);
}

/** Where cuMemAddressReserve takes from: one range for all devices of a process. */
export function virtualAddresses(): AddressRange {
  return new AddressRange(48 * TiB, 79 * TiB, 4 * PiB);
}
