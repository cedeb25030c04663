// One GPU: a capacity shared by the caching allocator, NCCL and everything else, on one clock. Every model takes from the same
// bytes, so that an out-of-memory error falls where it would on the real device: the allocator after it gave back what it had
// cached and tried again, NCCL at once (it knows nothing of PyTorch's cache).
//
// Uncertain memory has three figures. What is charged against the capacity is one of them (`bound`, the likely one by default);
// the counters report all three.

import type { Block } from '../allocator/block.ts';
import { CachingAllocator } from '../allocator/caching_allocator.ts';
import type { DriverMemory } from '../allocator/driver.ts';
import { OutOfMemoryError } from '../allocator/out_of_memory.ts';
import type { MempoolId } from '../allocator/private_pool.ts';
import { type EventCompletion, StreamClock } from '../allocator/stream_clock.ts';
import { addBands, type Band, NO_BAND, sumBands } from '../base/band.ts';
import { formatBytes } from '../base/bytes.ts';
import { EVIDENCE_ORDER, type Evidence, weakestEvidence } from '../base/evidence.ts';
import {
  CATEGORIES,
  type Category,
  type Component,
  refuseDoubleCounting,
} from '../external/component.ts';
import { type ExternalFigure, ExternalMemory, exactFigure } from '../external/external_memory.ts';
import { collectiveOf } from '../nccl/algorithm.ts';
import type { NcclSettings } from '../nccl/communicator.ts';
import { type GroupEvent, ProcessGroups } from '../nccl/process_groups.ts';
import type { MemoryAccount } from '../nccl/profile.ts';
import type { MemoryTerm } from '../nccl/term.ts';
import type { EventOf, Fields } from '../protocol/events.ts';
import { type Allocation, type Device, type DeviceCounters, DeviceOutOfMemory } from './device.ts';
import type { DeviceCapacity } from './gpus.ts';

export interface GpuDeviceOptions {
  readonly capacity: DeviceCapacity;
  /** Device index, for messages. Default 0. */
  readonly index?: number | undefined;
  /** PYTORCH_ALLOC_CONF. Absent: what the job itself sets (`applySettings`). */
  readonly allocConf?: string | undefined;
  /** When work on other streams is done, for blocks that wait for it. Default: at once. */
  readonly streams?: EventCompletion | undefined;
  /** The job's NCCL. Absent: communicators are of unknown size. */
  readonly nccl?: NcclSettings | undefined;
  /** Leave NCCL out on purpose: communicators take nothing and are not unknown. For scenarios that declare NCCL themselves. */
  readonly omitNccl?: boolean | undefined;
  /** Global rank whose device this is. Default 0. */
  readonly rank?: number | undefined;
  /** Memory stated by the user. */
  readonly components?: readonly Component[] | undefined;
  /** Whether a CUDA context is modelled. Default: unless a residual already holds it. */
  readonly context?: boolean | undefined;
  /** Which figure of uncertain memory counts against the capacity. Default likely. */
  readonly bound?: keyof Band | undefined;
}

/** A part of the memory outside the caching allocator, now. Sizes are NaN where they are not known. */
export interface ExternalPart {
  readonly name: string;
  readonly category: Category;
  readonly bytes: number;
  readonly low: number;
  readonly high: number;
  readonly evidence: Evidence;
  readonly provenance: string;
}

interface RecordedEvent {
  readonly stream: number;
  readonly ticket: number;
}

/** A private pool of the trace. A graph's pool gets its id from the allocator at the first capture. */
interface TracePool {
  readonly kind: string;
  id: MempoolId | undefined;
}

export class GpuDevice implements Device {
  readonly capacity: DeviceCapacity;
  readonly allocator: CachingAllocator;
  readonly counters: DeviceCounters;
  readonly #options: GpuDeviceOptions;
  readonly #bound: keyof Band;
  readonly #clock: StreamClock;
  readonly #driver: SharedDriverMemory;
  readonly #external: ExternalMemory;
  readonly #groups: ProcessGroups | undefined;
  readonly #events = new Map<number, RecordedEvent>();
  readonly #pools = new Map<number, TracePool>();
  /** Names of the trace's communicators. */
  readonly #groupNames = new Map<number, string>();
  readonly #openScopes = new Set<number>();
  /** Bytes taken through `account`, by name: exact. */
  readonly #accounted = new Map<string, number>();
  #accountedBytes = 0;
  /** Sums of the parts, brought up to date after every change. */
  #total: Band = NO_BAND;
  #isKnown = true;

  /**
   * @throws UserError when `allocConf` is not valid, or when memory would be counted twice.
   * @throws DeviceOutOfMemory `external` when what is there from the start does not fit.
   */
  constructor(options: GpuDeviceOptions) {
    const { capacity, components = [], nccl } = options;
    this.capacity = capacity;
    this.#options = options;
    this.#bound = options.bound ?? 'likely';
    const residual = components.flatMap(({ includes }) => includes ?? []);
    const stated = components.map(({ category }) => category);
    const context =
      options.context ?? !(residual.includes('context') || stated.includes('context'));
    const modelled: Category[] = [];
    if (context) modelled.push('context');
    if (nccl) modelled.push('nccl');
    refuseDoubleCounting(components, modelled);
    this.#clock = new StreamClock(options.streams ?? 'at_once');
    this.#driver = new SharedDriverMemory(capacity.usableBytes);
    this.#external = new ExternalMemory({
      gpu: capacity.gpu,
      ncclVersion: nccl?.release.version ?? '',
      context,
      nccl: nccl !== undefined,
      components,
    });
    this.#groups = nccl && new ProcessGroups(nccl, options.rank ?? 0);
    this.allocator = new CachingAllocator({
      driver: this.#driver,
      device: options.index ?? 0,
      clock: this.#clock,
      ...(options.allocConf === undefined ? {} : { conf: options.allocConf }),
    });
    this.counters = this.#makeCounters();
    this.#refresh();
    if (this.#driver.free < 0) {
      const bytes = this.#driver.external;
      this.#driver.external = 0;
      throw this.#full('external', bytes, 'what is there from the start');
    }
  }

  // ---- the caching allocator

  malloc(bytes: number, stream: number, pool: number): Allocation {
    const id = this.#openScopes.has(pool) ? undefined : this.#pools.get(pool)?.id;
    try {
      return this.allocator.malloc(bytes, stream, id);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      throw new DeviceOutOfMemory('allocator', error.facts.requested, error.message);
    }
  }

  free(allocation: Allocation): void {
    this.allocator.free(allocation as Block);
  }

  recordStream(allocation: Allocation, stream: number): void {
    this.allocator.recordStream(allocation as Block, stream);
  }

  recordEvent(event: number, stream: number): void {
    this.#events.set(event, { stream, ticket: this.#clock.record(stream) });
  }

  /** A stream that waits holds nothing back on the host, where blocks are freed. */
  waitEvent(): void {}

  synchronizeEvent(event: number): void {
    const recorded = this.#events.get(event);
    if (recorded) this.#clock.completeUpTo(recorded.stream, recorded.ticket);
  }

  synchronizeStream(stream: number): void {
    this.allocator.synchronize(stream);
  }

  synchronize(): void {
    this.allocator.synchronize();
  }

  emptyCache(): void {
    this.allocator.emptyCache();
  }

  setFraction(fraction: number): void {
    this.allocator.setMemoryFraction(fraction);
  }

  applySettings(conf: string): void {
    if (this.#options.allocConf === undefined) this.allocator.setConf(conf);
  }

  createPool(pool: number, kind: string, options: Fields): void {
    if (kind === 'graph') {
      this.#pools.set(pool, { kind, id: undefined });
      return;
    }
    const id = this.allocator.createPool({
      noSplit: options.no_split === true,
      useOnOom: options.use_on_oom === true,
    });
    this.#pools.set(pool, { kind, id });
  }

  beginPool(pool: number, stream: number): void {
    const entry = this.#pools.get(pool) ?? { kind: 'graph', id: undefined };
    this.#pools.set(pool, entry);
    this.#openScopes.add(pool);
    if (entry.kind === 'graph') {
      entry.id = this.allocator.beginCapture(stream, entry.id);
    } else if (entry.id !== undefined) {
      this.allocator.beginAllocateToPool(entry.id);
    }
  }

  endPool(pool: number): void {
    const entry = this.#pools.get(pool);
    if (entry?.id === undefined || !this.#openScopes.delete(pool)) return;
    if (entry.kind === 'graph') this.allocator.endCapture(entry.id);
    else this.allocator.endAllocateToPool(entry.id);
  }

  releasePool(pool: number): void {
    const id = this.#pools.get(pool)?.id;
    if (id !== undefined) this.allocator.releasePool(id);
  }

  // ---- NCCL

  createCommunicator(event: EventOf<'communicator'>): void {
    const { communicator, backend, ranks, parent, options } = event;
    const { description } = options;
    const name =
      typeof description === 'string' && description !== ''
        ? `${description} ${event.name}`
        : event.name;
    this.#groupNames.set(communicator, name);
    if (this.#groups === undefined) {
      if (backend.includes('nccl') && this.#options.omitNccl !== true)
        this.#addUnknown(`communicator ${communicator}`, `NCCL communicator ${name}`);
      return;
    }
    const created = this.#groups.create({
      id: communicator,
      name,
      backend,
      ranks,
      eager: options.eager === true || typeof options.device_id === 'number',
      parent: parent === 0 ? undefined : parent,
      config: communicatorConfig(options),
    });
    this.#chargeNccl(created, `creating the communicator of ${name}`);
  }

  destroyCommunicator(communicator: number): void {
    this.#external.remove(`communicator ${communicator}`);
    this.#groups?.destroy(communicator);
    this.#groupNames.delete(communicator);
    this.#refresh();
  }

  beginCollective(event: EventOf<'collective_begin'>, kind: string): void {
    if (this.#groups === undefined) return;
    const name = this.#groupNames.get(event.communicator);
    const collective = collectiveOf(kind);
    if (name === undefined || collective === undefined) {
      const what =
        name === undefined ? `a group that was never reported (${kind})` : `collective ${kind}`;
      this.#addUnknown(`collective ${event.communicator} ${kind}`, what);
      return;
    }
    const called = this.#groups.call({
      group: event.communicator,
      collective,
      bytes: event.bytes,
      peer: event.peer === 0 ? undefined : event.peer - 1,
      batched: /^(batch|coalesced)_/.test(kind),
    });
    if (called.steps.length === 0 && called.kernel === undefined) return;
    this.#chargeNccl(called, `${kind} of ${formatBytes(event.bytes)} on ${name}`);
  }

  /** What NCCL took stays; the payload's tensors are the job's. */
  endCollective(): void {}

  // ---- other memory

  allocExternal(event: EventOf<'external_alloc'>): void {
    const category = CATEGORIES.find((known) => known === event.category) ?? 'other';
    const evidence = EVIDENCE_ORDER.find((known) => known === event.detail.evidence) ?? 'unknown';
    const provenance = String(event.detail.provenance ?? 'reported by the job, without provenance');
    const sized =
      evidence === 'unknown' && event.detail.evidence !== 'unknown' ? 'assumed' : evidence;
    const figure = exactFigure(event.external, category, event.bytes, sized, provenance);
    const step = this.#external.add(event.external, figure);
    this.#charge('external', step.bytes, `${event.category} "${event.external}"`, step.undo);
  }

  freeExternal(external: string): void {
    this.#external.remove(external);
    this.#refresh();
  }

  /** Components bound to phases of this name appear. */
  beginPhase(name: string): void {
    const step = this.#external.beginPhase(name);
    this.#charge('external', step.bytes, `components of phase ${name}`, step.undo);
  }

  endPhase(name: string): void {
    this.#external.endPhase(name);
    this.#refresh();
  }

  /** For a `CommunicatorLedger` that takes from this device. */
  readonly account: MemoryAccount = {
    tryTake: (bytes, name) => {
      if (bytes > this.#driver.free) return false;
      this.#accounted.set(name, (this.#accounted.get(name) ?? 0) + bytes);
      this.#accountedBytes += bytes;
      this.#refresh();
      return true;
    },
    give: (bytes, name) => {
      this.#accounted.set(name, (this.#accounted.get(name) ?? 0) - bytes);
      this.#accountedBytes -= bytes;
      this.#refresh();
    },
  };

  /** How often the allocator gave its cache back and tried again (`num_alloc_retries`). */
  get retries(): number {
    return this.allocator.stats.numAllocRetries;
  }

  /** What stands outside the caching allocator now, part by part. */
  externalParts(): ExternalPart[] {
    const parts = this.#external.breakdown().map(partOf);
    for (const { name, size, terms } of this.#groups?.communicators() ?? []) {
      const bytes = sumBands(terms.map((term) => term.bytes));
      parts.push({
        name: `NCCL communicator ${name} (${size} rank${size === 1 ? '' : 's'})`,
        category: 'nccl',
        bytes: bytes.likely,
        low: bytes.low,
        high: bytes.high,
        evidence: weakestEvidence(terms.map((term) => term.evidence)),
        provenance: describeTerms(terms),
      });
    }
    for (const [name, bytes] of this.#accounted) {
      if (bytes === 0) continue;
      parts.push({
        name: `NCCL communicator ${name}`,
        category: 'nccl',
        bytes,
        low: bytes,
        high: bytes,
        evidence: 'assumed',
        provenance: 'registered with a profile',
      });
    }
    return parts;
  }

  // ---- accounts

  #chargeNccl(event: GroupEvent, what: string): void {
    const undo = [event.undo];
    let bytes = event.bytes;
    if (this.#groups?.started) {
      const loaded = this.#external.loadNccl();
      undo.push(loaded.undo);
      bytes = addBands(bytes, loaded.bytes);
    }
    if (event.kernel !== undefined) {
      const launched = this.#external.launchNccl(event.kernel);
      undo.push(launched.undo);
      bytes = addBands(bytes, launched.bytes);
    }
    this.#charge('nccl', bytes, what, () => {
      for (const action of undo.reverse()) action();
    });
  }

  /** Brings the total up to date; takes the step back when it does not fit. */
  #charge(kind: 'nccl' | 'external', added: Band, what: string, undo: () => void): void {
    this.#refresh();
    const bytes = added[this.#bound];
    if (this.#driver.free >= 0 || bytes <= 0) return;
    undo();
    this.#refresh();
    throw this.#full(kind, bytes, what);
  }

  #full(kind: 'nccl' | 'external', bytes: number, what: string): DeviceOutOfMemory {
    const cached = this.allocator.reserved - this.allocator.active;
    const subject = kind === 'nccl' ? 'NCCL out of memory' : 'Out of memory outside PyTorch';
    const cache =
      cached > 0
        ? ` PyTorch has ${formatBytes(cached)} cached, which it does not give back for this.`
        : '';
    const { total, free } = this.#driver;
    return new DeviceOutOfMemory(
      kind,
      bytes,
      `${subject}: ${what} needs ${formatBytes(bytes)}; of the ${formatBytes(total)} of GPU ` +
        `${this.allocator.device}, ${formatBytes(Math.max(0, free))} is free.${cache}`,
    );
  }

  #addUnknown(id: string, name: string): void {
    this.#external.add(
      id,
      exactFigure(name, 'nccl', 0, 'unknown', 'no NCCL version and topology were given'),
    );
    this.#refresh();
  }

  #refresh(): void {
    const groups = this.#groups?.bytes ?? NO_BAND;
    const exact = this.#accountedBytes;
    const { low, likely, high } = addBands(this.#external.bytes, groups);
    this.#total = { low: low + exact, likely: likely + exact, high: high + exact };
    this.#isKnown = this.#external.isKnown;
    this.#driver.external = this.#total[this.#bound];
  }

  #makeCounters(): DeviceCounters {
    const { allocator } = this;
    const external = (bound: keyof Band) => (this.#isKnown ? this.#total[bound] : Number.NaN);
    return {
      get requested() {
        return allocator.requested;
      },
      get allocated() {
        return allocator.allocated;
      },
      get active() {
        return allocator.active;
      },
      get reserved() {
        return allocator.reserved;
      },
      get externalLow() {
        return external('low');
      },
      get external() {
        return external('likely');
      },
      get externalHigh() {
        return external('high');
      },
    };
  }
}

/** The device's memory as the allocator sees it: all that is not its own is `external`. */
class SharedDriverMemory implements DriverMemory {
  readonly total: number;
  external = 0;
  #taken = 0;

  constructor(total: number) {
    this.total = total;
  }

  /** Negative when more is taken than there is. */
  get free(): number {
    return this.total - this.#taken - this.external;
  }

  used(): number {
    return this.#taken + this.external;
  }

  usedByProcess(): number {
    return this.#taken + this.external;
  }

  tryTake(bytes: number): boolean {
    if (bytes > this.free) return false;
    this.#taken += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#taken -= bytes;
  }
}

function communicatorConfig(options: Fields): {
  minCtas?: number;
  maxCtas?: number;
  splitShare?: boolean;
} {
  const number = (value: Fields[string] | undefined) =>
    typeof value === 'number' ? value : undefined;
  const minCtas = number(options.min_ctas);
  const maxCtas = number(options.max_ctas);
  const share = options.split_share;
  return {
    ...(minCtas === undefined ? {} : { minCtas }),
    ...(maxCtas === undefined ? {} : { maxCtas }),
    ...(share === undefined ? {} : { splitShare: share === true || share === 1 }),
  };
}

function partOf({ name, category, bytes, evidence, provenance }: ExternalFigure): ExternalPart {
  return {
    name,
    category,
    bytes: bytes?.likely ?? Number.NaN,
    low: bytes?.low ?? Number.NaN,
    high: bytes?.high ?? Number.NaN,
    evidence,
    provenance,
  };
}

/** `channel structures 192.00 MiB, …; NCCL v2.30.7-1`. */
function describeTerms(terms: readonly MemoryTerm[]): string {
  if (terms.length === 0) return 'no memory yet';
  const sizes = terms.map((term) => `${term.name} ${formatBytes(term.bytes.likely)}`).join(', ');
  const tag = /NCCL (\S+)/.exec(terms[0].source)?.[0] ?? terms[0].source;
  return `${sizes}; ${tag}`;
}
