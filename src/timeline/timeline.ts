// A trace replayed through one device: what each kind of memory was at every event, where its peaks stood, per phase and
// over the run, and where the device was full.

import type { PhaseMeta, Trace } from '../trace/trace.ts';

/**
 * Kinds of memory. allocated ≤ active ≤ reserved; requested ≤ active, and above allocated while freed blocks wait for a stream:
 * PyTorch takes a block off `requested_bytes` when it becomes free, not when it is freed (2.14.1, c10/cuda/CUDACachingAllocator.cpp,
 * `free_block`). `resident` = reserved + external at one instant.
 */
export const MEMORY_KINDS = [
  'requested',
  'allocated',
  'active',
  'reserved',
  'external',
  'resident',
] as const;
export type MemoryKind = (typeof MEMORY_KINDS)[number];

/** Bytes of every kind at one instant. `externalLow` and `externalHigh` bound `external`; NaN where unknown. */
export interface Instant {
  readonly requested: number;
  readonly allocated: number;
  readonly active: number;
  readonly reserved: number;
  readonly external: number;
  readonly externalLow: number;
  readonly externalHigh: number;
  readonly resident: number;
}

/** A peak and the event during which it stood. `bytes` is NaN where the memory is not known (external, resident). */
export interface Peak {
  readonly bytes: number;
  readonly event: number;
}

export type Peaks = { readonly [K in MemoryKind]: Peak };

export interface PhaseSpan {
  readonly phase: PhaseMeta;
  readonly before: Instant;
  readonly after: Instant;
  /** Inside the phase, its inner phases included; what was carried in counts. */
  readonly peaks: Peaks;
}

/** The allocation at which the device was full. The replay ends there, as the job would. */
export interface OutOfMemory {
  readonly event: number;
  readonly kind: 'allocator' | 'nccl' | 'external';
  readonly requestedBytes: number;
  readonly message: string;
  /** Just before the failing call. */
  readonly instant: Instant;
}

export interface Timeline {
  readonly trace: Trace;
  readonly deviceId: number;
  /** Number of events replayed: less than the trace's when the device was full. */
  readonly length: number;
  /**
   * By event: the largest value during the event. For all but `resize` (new block before the old one is freed) that is
   * the value after it.
   */
  readonly series: {
    readonly requested: Float64Array;
    readonly allocated: Float64Array;
    readonly active: Float64Array;
    readonly reserved: Float64Array;
    readonly external: Float64Array;
  };
  /** By event: the block that an alloc or resize got (0 for an empty storage); 0 for other events. */
  readonly blockBytes: Float64Array;
  readonly peaks: Peaks;
  /** Largest resident at the lower and at the upper bound of external memory; NaN where a bound is unknown. */
  readonly residentLow: Peak;
  readonly residentHigh: Peak;
  /** In the order in which phases begin. */
  readonly phases: readonly PhaseSpan[];
  readonly final: Instant;
  readonly outOfMemory: OutOfMemory | null;
}
