// The seam between a replay and whatever models one device. The timeline drives a device through this interface alone;
// allocator settings, capacity, NCCL version and topology are constructor arguments of the implementations.

import type { EventOf } from '../protocol/events.ts';

/** A live allocation. `size` is the allocator's block (requested, rounded, unsplit); 0 for an empty storage. */
export interface Allocation {
  readonly size: number;
}

/** Current bytes by kind. Plain number properties: they are read after every event. */
export interface DeviceCounters {
  readonly requested: number;
  readonly allocated: number;
  readonly active: number;
  readonly reserved: number;
  /** Outside the caching allocator: lower bound, best figure, upper bound. NaN where nothing is known. */
  readonly externalLow: number;
  readonly external: number;
  readonly externalHigh: number;
}

/** Where an out-of-memory happened: in the caching allocator, or in memory outside it. */
export class DeviceOutOfMemory extends Error {
  readonly kind: 'allocator' | 'nccl' | 'external';
  /** Bytes that the failing call asked for. */
  readonly requestedBytes: number;

  /** @param message PyTorch's own text for `allocator`, a sentence that names NCCL or the component otherwise. */
  constructor(kind: DeviceOutOfMemory['kind'], requestedBytes: number, message: string) {
    super(message);
    this.name = 'DeviceOutOfMemory';
    this.kind = kind;
    this.requestedBytes = requestedBytes;
  }
}

/**
 * One device during a replay. Every method may throw {@link DeviceOutOfMemory} where it takes memory; the device stays
 * usable, as the real one does after a caught error.
 *
 * Stream and pool 0 are the default ones. Stream ids are those of the trace.
 */
export interface Device {
  readonly counters: DeviceCounters;

  malloc(bytes: number, stream: number, pool: number): Allocation;
  free(allocation: Allocation): void;
  recordStream(allocation: Allocation, stream: number): void;

  recordEvent(event: number, stream: number): void;
  waitEvent(event: number, stream: number): void;
  synchronizeEvent(event: number): void;
  synchronizeStream(stream: number): void;
  synchronize(): void;

  emptyCache(): void;
  setFraction(fraction: number): void;
  /** The job's own PYTORCH_ALLOC_CONF; ignored when the replay was given settings of its own. */
  applySettings(conf: string): void;
  createPool(pool: number, kind: string, options: EventOf<'pool_create'>['options']): void;
  beginPool(pool: number, stream: number): void;
  endPool(pool: number): void;
  releasePool(pool: number): void;

  createCommunicator(event: EventOf<'communicator'>): void;
  destroyCommunicator(communicator: number): void;
  /** `kind` is the text of the event's string id. */
  beginCollective(event: EventOf<'collective_begin'>, kind: string): void;
  endCollective(collective: number): void;
  allocExternal(event: EventOf<'external_alloc'>): void;
  freeExternal(external: string): void;

  /** A phase of this name opens or closes: memory that is bound to it comes and goes. */
  beginPhase?(name: string): void;
  endPhase?(name: string): void;
}
