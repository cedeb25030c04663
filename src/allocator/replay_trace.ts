// Replays an allocator trace and says after each step what tests/oracle/oracle.py says of the real allocator: the same
// keys with the same numbers.

import { createHash } from 'node:crypto';
import { ExitStatus, UserError } from '../base/errors.ts';
import type { Block } from './block.ts';
import { CachingAllocator } from './caching_allocator.ts';
import { FixedDriverMemory, virtualAddresses } from './driver.ts';
import { OutOfMemoryError } from './out_of_memory.ts';
import { DEFAULT_POOL, type MempoolId } from './private_pool.ts';
import type { SegmentSnapshot } from './snapshot.ts';
import type { MemoryStats, StatName } from './stats.ts';
import { StreamClock } from './stream_clock.ts';
import {
  type BlockId,
  type ConfigOp,
  parseConfigOp,
  parseStepOp,
  type StepOp,
  TraceError,
} from './trace_op.ts';

/** `[action, address | free device bytes, size, stream, pool?, device?]`; the pool only where it is not the default. */
export type EventRow = readonly (string | number | MempoolId)[];

/** One device's counters. */
export interface StatsRow {
  readonly allocated: number;
  readonly active: number;
  readonly requested: number;
  readonly reserved: number;
  readonly n_alloc: number;
  readonly n_active: number;
  readonly n_segment: number;
  readonly n_inactive_split: number;
  readonly inactive_split: number;
  /** Of the small pool: allocated, active, requested, reserved bytes, segments. */
  readonly small: readonly number[];
  /** Peaks of allocated, active, requested, reserved. */
  readonly peak: readonly number[];
  readonly retries: number;
  readonly ooms: number;
  readonly rejections: number;
  readonly syncs: number;
  readonly dev_alloc: number;
  readonly dev_free: number;
  readonly oversize_alloc: number;
  readonly oversize_seg: number;
  /** Bytes that the allocator holds from the driver. */
  readonly driver_used: number;
  readonly private_reserved?: Readonly<Record<string, number>>;
}

/** `[size, A(llocated) | W(aiting for a stream) | I(nactive), requested size]`. */
export type BlockRow = readonly [number, 'A' | 'W' | 'I', number];

export interface SegmentRow {
  readonly addr: number;
  readonly size: number;
  readonly stream: number;
  readonly pool: 'small' | 'large';
  readonly exp: boolean;
  readonly pid: MempoolId;
  readonly blocks: readonly BlockRow[];
  readonly dev?: number;
}

export interface StepRow {
  readonly i: number;
  readonly op: string;
  readonly id?: BlockId;
  readonly addr?: number;
  readonly oom?: true;
  /** Text of the OutOfMemoryError. */
  readonly msg?: string;
  /** The id went out of memory when it was allocated: nothing to do. */
  readonly noop?: true;
  readonly pool_id?: MempoolId;
  /** Here PyTorch 2.14.1 itself is undefined, and nothing after it can be compared. The real allocator has no such key. */
  readonly undefined?: string;
  /** An array when there are several devices. */
  readonly stats: StatsRow | readonly StatsRow[];
  readonly events: readonly EventRow[];
  readonly segs?: readonly SegmentRow[];
  /** Hash of the layout without addresses. */
  readonly canon?: string;
  /** Every counter, after the last step. An array when there are several devices. */
  readonly memory_stats?: MemoryStats | readonly MemoryStats[];
}

type StepResult = Pick<StepRow, 'addr' | 'oom' | 'msg' | 'noop' | 'pool_id'>;

const STREAM_STRIDE = 0x1000;
const BLOCK_LETTERS = {
  active_allocated: 'A',
  active_pending_free: 'W',
  inactive: 'I',
} as const;

interface Device {
  readonly memory: FixedDriverMemory;
  readonly allocator: CachingAllocator;
}

interface LiveBlock {
  readonly allocator: CachingAllocator;
  /** Null for an allocation of 0 bytes, which never reaches the allocator. */
  readonly block: Block | null;
}

interface Graph {
  readonly device: Device;
  readonly pool: MempoolId;
}

export class TraceReplay {
  readonly #clock: StreamClock;
  readonly #devices: Device[] = [];
  readonly #live = new Map<BlockId, LiveBlock>();
  readonly #outOfMemory = new Set<BlockId>();
  readonly #pools = new Map<string, MempoolId>();
  readonly #graphs = new Map<string, Graph>();
  #events: EventRow[] = [];
  #undefined: string | null = null;
  #step = 0;

  /** @throws UserError when the configuration text is not valid */
  constructor(config: ConfigOp) {
    this.#clock = new StreamClock(config.events === 'manual' ? 'on_request' : 'at_once');
    const addresses = virtualAddresses();
    for (let device = 0; device < config.devices; device++) {
      const memory = new FixedDriverMemory(config.capacity, config.ctx);
      const allocator = new CachingAllocator({
        driver: memory,
        device,
        conf: config.conf ?? '',
        clock: this.#clock,
        virtualAddresses: addresses,
        freeSynchronizes: config.free_syncs === true || config.free_syncs === 1,
        listener: {
          entry: (action, address, size, stream, pool) => {
            const row: (string | number | MempoolId)[] = [action, address, size, stream];
            if (pool[0] !== 0 || pool[1] !== 0 || config.devices > 1) row.push(pool);
            if (config.devices > 1) row.push(device);
            this.#events.push(row);
          },
        },
        onUndefined: (reason) => {
          this.#undefined ??= reason;
        },
      });
      this.#devices.push({ memory, allocator });
    }
    if (typeof config.fraction === 'number') {
      this.#devices[0].allocator.setMemoryFraction(config.fraction);
    }
  }

  /** The state before the first step. */
  initial(): StepRow {
    return { i: 0, op: 'config', ...this.#observe(true) };
  }

  /** @throws TraceError when the step makes no sense here; UserError when it sets an invalid configuration */
  step(op: StepOp, withLayout = true): StepRow {
    const result = this.#apply(op);
    this.#step++;
    const undefinedHere = this.#undefined;
    this.#undefined = null;
    return {
      i: this.#step,
      op: op.op,
      ...('id' in op ? { id: op.id } : {}),
      ...result,
      ...(undefinedHere !== null ? { undefined: undefinedHere } : {}),
      ...this.#observe(withLayout),
    };
  }

  #apply(op: StepOp): StepResult {
    switch (op.op) {
      case 'alloc':
        return this.#alloc(op);
      case 'free': {
        const live = this.#liveBlock(op.id);
        if (live === null) return { noop: true };
        this.#live.delete(op.id);
        if (live.block !== null) live.allocator.free(live.block);
        return {};
      }
      case 'record_stream': {
        const live = this.#liveBlock(op.id, { keep: true });
        if (live === null) return { noop: true };
        if (live.block !== null) live.allocator.recordStream(live.block, handle(op.stream));
        return {};
      }
      case 'complete':
        this.#clock.complete(handle(op.stream));
        return {};
      case 'sync':
        this.#clock.complete(handle(op.stream));
        return {};
      case 'sync_all':
        this.#clock.completeAll();
        return {};
      case 'empty_cache':
        for (const { allocator } of this.#devices) allocator.emptyCache();
        return {};
      case 'set_conf':
        for (const { allocator } of this.#devices) allocator.setConf(op.conf);
        return {};
      case 'set_fraction':
        this.#device(op.dev).allocator.setMemoryFraction(op.fraction);
        return {};
      case 'set_external':
        this.#device(op.dev).memory.external = op.bytes;
        return {};
      case 'pool_new': {
        if (this.#pools.has(op.pool)) throw new TraceError(`pool "${op.pool}" exists already`);
        const id = this.#devices[0].allocator.createPool({
          noSplit: op.no_split,
          useOnOom: op.use_on_oom,
        });
        this.#pools.set(op.pool, id);
        return { pool_id: id };
      }
      case 'pool_del': {
        const id = this.#pool(op.pool);
        this.#pools.delete(op.pool);
        this.#devices[0].allocator.deletePool(id);
        return {};
      }
      case 'reset_peak':
        this.#device(op.dev).allocator.resetPeak();
        return {};
      case 'reset_accumulated':
        this.#device(op.dev).allocator.resetAccumulated();
        return {};
      case 'capture_begin': {
        if (this.#graphs.has(op.graph)) throw new TraceError(`graph "${op.graph}" exists already`);
        const device = this.#device(op.dev);
        const shared = op.pool == null ? undefined : this.#graph(op.pool).pool;
        const pool = device.allocator.beginCapture(handle(op.stream), shared);
        this.#graphs.set(op.graph, { device, pool });
        return {};
      }
      case 'capture_node':
        for (const { allocator } of this.#devices) allocator.captureNode(handle(op.stream));
        return {};
      case 'capture_wait':
        for (const { allocator } of this.#devices) {
          allocator.captureJoin(handle(op.stream), handle(op.on));
        }
        return {};
      case 'capture_end': {
        const { device, pool } = this.#graph(op.graph);
        device.allocator.endCapture(pool);
        return { pool_id: pool };
      }
      case 'graph_reset': {
        const { device, pool } = this.#graph(op.graph);
        this.#graphs.delete(op.graph);
        device.allocator.releasePool(pool);
        return {};
      }
    }
  }

  #alloc(op: StepOp & { op: 'alloc' }): StepResult {
    if (this.#live.has(op.id)) throw new TraceError(`id ${op.id} is allocated already`);
    const { allocator } = this.#device(op.dev);
    const pool = op.pool == null ? undefined : this.#pool(op.pool);
    if (op.size === 0) {
      this.#live.set(op.id, { allocator, block: null });
      return { addr: 0 };
    }
    try {
      const block = allocator.malloc(op.size, handle(op.stream), pool);
      this.#outOfMemory.delete(op.id);
      this.#live.set(op.id, { allocator, block });
      return { addr: block.ptr };
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      this.#outOfMemory.add(op.id);
      return { oom: true, msg: error.message };
    }
  }

  /** Null for an id that was never in memory because its allocation ran out of it. */
  #liveBlock(id: BlockId, { keep = false } = {}): LiveBlock | null {
    const live = this.#live.get(id);
    if (live !== undefined) return live;
    if (keep ? this.#outOfMemory.has(id) : this.#outOfMemory.delete(id)) return null;
    throw new TraceError(`id ${id} is not allocated: it was never, or it was freed before`);
  }

  #device(index: number): Device {
    const device = this.#devices[index];
    if (device === undefined) throw new TraceError(`there is no device ${index}`);
    return device;
  }

  #pool(name: string): MempoolId {
    const id = this.#pools.get(name);
    if (id === undefined) throw new TraceError(`there is no pool "${name}"`);
    return id;
  }

  #graph(name: string): Graph {
    const graph = this.#graphs.get(name);
    if (graph === undefined) throw new TraceError(`there is no graph "${name}"`);
    return graph;
  }

  /** Every counter, for the last row. */
  memoryStats(): MemoryStats | readonly MemoryStats[] {
    const stats = this.#devices.map(({ allocator }) => allocator.stats.memoryStats());
    return stats.length === 1 ? stats[0] : stats;
  }

  #observe(withLayout: boolean): Pick<StepRow, 'stats' | 'events' | 'segs' | 'canon'> {
    const stats = this.#devices.map(statsRow);
    const events = this.#events;
    this.#events = [];
    const row = { stats: stats.length === 1 ? stats[0] : stats, events };
    return withLayout ? { ...row, ...this.#layout() } : row;
  }

  #layout(): { segs: SegmentRow[]; canon: string } {
    const segments = this.#devices.flatMap(({ allocator }) => allocator.snapshot());
    const several = this.#devices.length > 1;
    const segs = segments.map((segment): SegmentRow => {
      const row = segmentRow(segment);
      return several ? { ...row, dev: segment.device } : row;
    });
    const lines = segs.map((row, at) => canonicalLine(row, segments[at].device)).sort();
    const canon = createHash('sha1').update(lines.join('\n')).digest('hex').slice(0, 16);
    return { segs, canon };
  }
}

export interface ReplayOptions {
  /** Segments and blocks after each n-th step and after the last; after every step by default. */
  readonly layoutEvery?: number;
}

/**
 * Replays the lines of a trace file.
 *
 * @param source what to call the trace in messages
 * @throws UserError `broken_trace` with the line number and the reason, after the rows of the lines before it
 */
export async function* replayTrace(
  lines: AsyncIterable<string> | Iterable<string>,
  source: string,
  { layoutEvery = 1 }: ReplayOptions = {},
): AsyncGenerator<StepRow> {
  let replay: TraceReplay | null = null;
  let lineNumber = 0;
  let steps = 0;
  // One line ahead: the last step always shows its layout.
  let pending: { readonly text: string; readonly line: number } | null = null;
  const step = (current: TraceReplay, text: string, line: number, isLast: boolean): StepRow => {
    steps++;
    return atLine(source, line, () =>
      current.step(parseStepOp(text), isLast || steps % layoutEvery === 0),
    );
  };
  for await (const text of lines) {
    lineNumber++;
    if (text.trim() === '') continue;
    if (replay === null) {
      const config = atLine(source, lineNumber, () => parseConfigOp(text));
      replay = atLine(source, lineNumber, () => new TraceReplay(config));
      yield replay.initial();
      continue;
    }
    if (pending !== null) yield step(replay, pending.text, pending.line, false);
    pending = { text, line: lineNumber };
  }
  if (replay === null) throw brokenTrace(`${source}: the trace is empty`);
  if (pending !== null) {
    const row = step(replay, pending.text, pending.line, true);
    yield { ...row, memory_stats: replay.memoryStats() };
  }
}

function atLine<T>(source: string, line: number, action: () => T): T {
  try {
    return action();
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    throw brokenTrace(`${source}, line ${line}: ${error.message}`, error);
  }
}

function brokenTrace(message: string, cause?: Error): UserError {
  return new UserError('broken_trace', message, { exitStatus: ExitStatus.brokenTrace, cause });
}

function handle(stream: number): number {
  return stream * STREAM_STRIDE;
}

function statsRow({ memory, allocator }: Device): StatsRow {
  const { stats } = allocator;
  const small = (name: StatName): number => stats.get(name, 'small_pool');
  const reserved = [...stats.reservedByPrivatePool].map(([id, stat]) => [id, stat.all.current]);
  return {
    allocated: allocator.allocated,
    active: allocator.active,
    requested: allocator.requested,
    reserved: stats.get('reserved_bytes'),
    n_alloc: stats.get('allocation'),
    n_active: stats.get('active'),
    n_segment: stats.get('segment'),
    n_inactive_split: stats.get('inactive_split'),
    inactive_split: stats.get('inactive_split_bytes'),
    small: [
      small('allocated_bytes'),
      small('active_bytes'),
      small('requested_bytes'),
      small('reserved_bytes'),
      small('segment'),
    ],
    peak: [
      allocator.peakAllocated,
      allocator.peakActive,
      allocator.peakRequested,
      allocator.peakReserved,
    ],
    retries: stats.numAllocRetries,
    ooms: stats.numOoms,
    rejections: stats.numOomRejections,
    syncs: stats.numSyncAllStreams,
    dev_alloc: stats.numDeviceAlloc,
    dev_free: stats.numDeviceFree,
    oversize_alloc: stats.oversizeAllocations.current,
    oversize_seg: stats.oversizeSegments.current,
    driver_used: memory.taken,
    ...(reserved.length > 0 ? { private_reserved: Object.fromEntries(reserved) } : {}),
  };
}

function segmentRow(segment: SegmentSnapshot): SegmentRow {
  return {
    addr: segment.address,
    size: segment.total_size,
    stream: segment.stream,
    pool: segment.segment_type,
    exp: segment.is_expandable,
    pid: segment.segment_pool_id,
    blocks: segment.blocks.map(
      (block): BlockRow => [block.size, BLOCK_LETTERS[block.state], block.requested_size],
    ),
  };
}

/** As Python's json.dumps writes the list, so that the hash is the oracle's. */
function canonicalLine(row: SegmentRow, device: number): string {
  const blocks = row.blocks.map(
    ([size, letter, requested]) => `[${size}, "${letter}", ${requested}]`,
  );
  const pool = `[${(row.pid ?? DEFAULT_POOL).join(', ')}]`;
  return (
    `[${device}, ${row.stream}, "${row.pool}", ${row.exp}, ${pool}, ${row.size}, ` +
    `[${blocks.join(', ')}]]`
  );
}
