// How a requested size becomes a block size, a pool and a segment size.
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp (round_size, roundup_power2_next_division,
// get_allocation_size) and c10/core/AllocatorConfig.h (the constants).

import { MiB, roundUp } from '../base/bytes.ts';
import type { AllocatorConfig } from './config.ts';

/** Every block is a multiple of this (`kMinBlockSize`). */
export const MIN_BLOCK_SIZE = 512;
/** Requests up to this, inclusive and rounded, live in the small pool (`kSmallSize`). */
export const SMALL_SIZE = MiB;
/** Segment of the small pool (`kSmallBuffer`). */
export const SMALL_SEGMENT_SIZE = 2 * MiB;
/** Requests from this, inclusive and rounded, get a segment of their own size (`kMinLargeAlloc`). */
export const MIN_OWN_SEGMENT_SIZE = 10 * MiB;
/** … rounded up to this (`kRoundLarge`). */
export const OWN_SEGMENT_ROUNDING = 2 * MiB;

/** Bytes of the block for a request of `requested` bytes. */
export function roundSize(requested: number, config: AllocatorConfig): number {
  if (requested < MIN_BLOCK_SIZE) return MIN_BLOCK_SIZE;
  if (config.roundupPower2Divisions !== null) {
    const divisions = divisionsFor(requested, config.roundupPower2Divisions);
    if (divisions > 1 && requested > MIN_BLOCK_SIZE * divisions) {
      return roundUp(requested, power2Floor(requested) / divisions);
    }
  }
  return Math.ceil(requested / MIN_BLOCK_SIZE) * MIN_BLOCK_SIZE;
}

/** Whether a block of `size` (rounded) bytes belongs to the small pool. */
export function isSmall(size: number): boolean {
  return size <= SMALL_SIZE;
}

/** Bytes of a new segment for a block of `size` (rounded) bytes. */
export function segmentSize(size: number, config: AllocatorConfig): number {
  if (size <= SMALL_SIZE) return SMALL_SEGMENT_SIZE;
  if (size < MIN_OWN_SEGMENT_SIZE) return config.largeSegmentSize;
  return roundUp(size, OWN_SEGMENT_ROUNDING);
}

/** The table has one entry for each power of two from 1 MiB; smaller and larger sizes use the nearest. */
function divisionsFor(size: number, table: readonly number[]): number {
  const index = Math.floor(Math.log2(power2Floor(size) / MiB));
  return table[Math.min(Math.max(index, 0), table.length - 1)];
}

/** The largest power of two up to `size`. Exact for every whole number of bytes, unlike a rounded `Math.log2`. */
function power2Floor(size: number): number {
  const high = Math.floor(size / 2 ** 31);
  if (high === 0) return 2 ** (31 - Math.clz32(size));
  return 2 ** (31 - Math.clz32(high)) * 2 ** 31;
}
