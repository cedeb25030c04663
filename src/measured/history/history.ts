// The history of one device, checked entry by entry against the snapshot that ends it.
//
// A snapshot holds what the allocator looked like at its end and a list of what happened before. The state at the start of the
// list is worked out backwards from the end, then the list is replayed forwards with strict accounting. What does not add
// up is an error that names the entry: a peak of a history with a hole would be a number that nobody measured.
//
// Requested bytes are exact. Block sizes come from three sources, in this order: the snapshot's own blocks (bound to the
// allocation that is live at the end, never to an earlier one at the same address), the split rule (see block_map.ts), and
// bounds for blocks that were there before the history began and were freed inside it.

import { type AllocatorConfig, DEFAULT_CONFIG } from '../../allocator/config.ts';
import { MIN_OWN_SEGMENT_SIZE, roundSize, SMALL_SEGMENT_SIZE } from '../../allocator/size_class.ts';
import { formatBytes, MiB } from '../../base/bytes.ts';
import { UserError } from '../../base/errors.ts';
import type { Plain } from '../pickle/values.ts';
import { ActionCode, type MemorySnapshot, type Segment } from '../snapshot/snapshot.ts';
import { AddressRanges } from './address_ranges.ts';
import {
  BlockMap,
  blockBounds,
  blockSizeFrom,
  type MappedBlock,
  type SegmentKind,
} from './block_map.ts';

/** A block that was live when the history begins. */
export interface BaselineBlock {
  readonly address: number;
  readonly requested: number;
  /** Physical size: bounds, equal when known. */
  low: number;
  high: number;
  /** Where it was made, when the snapshot says so; node of the snapshot's stacks. */
  readonly stack: number;
  readonly stream: number;
  /** It had been let go of before the history began and waited for a stream. */
  readonly pending: boolean;
}

export interface BaselineSegment {
  readonly address: number;
  readonly size: number;
  readonly kind: SegmentKind;
}

/** An out-of-memory entry. */
export interface OutOfMemoryRow {
  readonly row: number;
  /** Rounded bytes that could not be had. */
  readonly size: number;
  readonly deviceFree: number;
}

/**
 * Rows are counted from 0 within the device's own trace. Arrays are by row.
 *
 * `target` of a free_requested or free_completed row: the row of the alloc that it ends, or `-1 - index` of a baseline block.
 */
export interface History {
  readonly snapshot: MemorySnapshot;
  readonly device: number;
  /** First row in the snapshot's entries. */
  readonly first: number;
  readonly count: number;
  readonly target: Int32Array;
  /** Block of an alloc row: its lower bound; equal to `blockHigh` when known. */
  readonly blockLow: Float64Array;
  readonly blockHigh: Float64Array;
  readonly baselineBlocks: readonly BaselineBlock[];
  readonly baselineSegments: readonly BaselineSegment[];
  readonly reservedAtStart: number;
  readonly outOfMemory: readonly OutOfMemoryRow[];
  /** Allocations (baseline included) whose block size is only bounded. */
  readonly boundedBlocks: number;
  readonly config: AllocatorConfig;
  readonly notes: readonly string[];
}

export interface HistoryOptions {
  /**
   * `max_entries` of `_record_memory_history`, when known (a captured run knows it). A history of that many entries has lost
   * its beginning.
   */
  readonly maxEntries?: number;
}

/**
 * @throws UserError `HISTORY_TRUNCATED`, `HISTORY_ACTION` (an unknown action, by name), `HISTORY_CONTRADICTION`.
 */
export function readHistory(
  snapshot: MemorySnapshot,
  device: number,
  options: HistoryOptions = {},
): History {
  return new Reader(snapshot, device).read(options);
}

/** The allocator's settings as a snapshot gives them; defaults for what it does not say. */
export function configOfSnapshot(settings: { readonly [key: string]: Plain }): AllocatorConfig {
  const conf = String(settings.PYTORCH_CUDA_ALLOC_CONF ?? '');
  const splitSize = settings.max_split_size;
  const segmentSize = /large_segment_size_mb:\s*(\d+)/.exec(conf);
  const divisions = settings.roundup_power2_divisions;
  let table: number[] | null = null;
  if (typeof divisions === 'object' && divisions !== null && !Array.isArray(divisions)) {
    table = Object.values(divisions).map((value) => Number(value));
    if (table.every((value) => value === 0)) table = null;
  }
  return {
    ...DEFAULT_CONFIG,
    expandableSegments: settings.expandable_segments === true,
    // -1: unlimited (memory_snapshot.cpp casts SIZE_MAX).
    maxSplitSize:
      typeof splitSize === 'number' && splitSize > 0 ? splitSize : Number.POSITIVE_INFINITY,
    largeSegmentSize:
      segmentSize === null ? DEFAULT_CONFIG.largeSegmentSize : Number(segmentSize[1]) * MiB,
    roundupPower2Divisions: table,
  };
}

const A = ActionCode;
const FREED = -1;

class Reader {
  readonly #snapshot: MemorySnapshot;
  readonly #device: number;
  readonly #segments: readonly Segment[];
  readonly #first: number;
  readonly #count: number;
  readonly #action: Uint8Array;
  readonly #address: Float64Array;
  readonly #size: Float64Array;
  readonly #config: AllocatorConfig;
  readonly #target: Int32Array;
  readonly #low: Float64Array;
  readonly #high: Float64Array;
  readonly #baseline: BaselineBlock[] = [];
  readonly #notes: string[] = [];
  /** Open blocks that the history itself allocated, by their row. */
  readonly #openRows = new Map<MappedBlock, number>();
  #baselineByAddress: Map<number, BaselineBlock> | undefined;
  #bounded = 0;

  constructor(snapshot: MemorySnapshot, device: number) {
    const trace = snapshot.deviceTraces.find((candidate) => candidate.device === device);
    this.#snapshot = snapshot;
    this.#device = device;
    this.#segments = snapshot.segments.filter((segment) => segment.device === device);
    this.#first = trace?.first ?? 0;
    this.#count = trace?.count ?? 0;
    const last = this.#first + this.#count;
    this.#action = snapshot.entries.action.view().subarray(this.#first, last);
    this.#address = snapshot.entries.address.view().subarray(this.#first, last);
    this.#size = snapshot.entries.size.view().subarray(this.#first, last);
    this.#config = configOfSnapshot(snapshot.allocatorSettings);
    this.#target = new Int32Array(this.#count).fill(-0x80000000);
    this.#low = new Float64Array(this.#count);
    this.#high = new Float64Array(this.#count);
  }

  read(options: HistoryOptions): History {
    this.#checkActions();
    const outOfMemory = this.#outOfMemory();
    const segments = this.#segmentsAtStart();
    this.#checkLength(options, segments.length > 0);
    this.#matchFrees();
    this.#sizeBlocks(segments);
    return {
      snapshot: this.#snapshot,
      device: this.#device,
      first: this.#first,
      count: this.#count,
      target: this.#target,
      blockLow: this.#low,
      blockHigh: this.#high,
      baselineBlocks: this.#baseline,
      baselineSegments: segments,
      reservedAtStart: segments.reduce((sum, segment) => sum + segment.size, 0),
      outOfMemory,
      boundedBlocks: this.#bounded,
      config: this.#config,
      notes: this.#notes,
    };
  }

  #checkActions(): void {
    for (let row = 0; row < this.#count; row++) {
      if (this.#action[row] > A.annotate) {
        const name = this.#snapshot.entries.actions.text(this.#action[row]).slice(0, 60);
        throw new UserError(
          'HISTORY_ACTION',
          `trace entry ${row} of device ${this.#device} has the action "${name}", which this memtracker does not know; ` +
            'what it does to memory is unknown, so no peak is given. Update memtracker.',
        );
      }
    }
  }

  /**
   * A ring buffer that was full has dropped its oldest entries, and the peak may have been among them. Only the recorder knows
   * its size; without it a round number of entries over memory that was there before is taken for one.
   */
  #checkLength(options: HistoryOptions, startsInUse: boolean): void {
    const { maxEntries } = options;
    const full = maxEntries !== undefined ? this.#count >= maxEntries : isRound(this.#count);
    if (!full || !startsInUse || this.#count === 0) return;
    throw new UserError(
      'HISTORY_TRUNCATED',
      `the history of device ${this.#device} holds exactly ${this.#count} entries` +
        `${maxEntries === undefined ? ', a size that people give to' : ', the size of'} its ring buffer: the oldest ones are lost, and a peak ` +
        'of the rest would be a partial one. Record again with torch.cuda.memory._record_memory_history() (no max_entries)' +
        `${maxEntries === undefined ? ', or say how many it could hold with --history-entries' : ''}.`,
    );
  }

  #outOfMemory(): OutOfMemoryRow[] {
    const rows: OutOfMemoryRow[] = [];
    for (let row = 0; row < this.#count; row++) {
      if (this.#action[row] === A.oom) {
        rows.push({ row, size: this.#size[row], deviceFree: this.#address[row] });
      }
    }
    return rows;
  }

  /** Undoes every segment entry from the end to the start. */
  #segmentsAtStart(): BaselineSegment[] {
    const fixed = new Map<number, BaselineSegment>();
    const mapped = new AddressRanges();
    for (const segment of this.#segments) {
      if (segment.expandable) {
        if (!mapped.add(segment.address, segment.address + segment.totalSize)) {
          throw this.#contradiction(this.#count, `segments overlap at ${hex(segment.address)}`);
        }
      } else {
        fixed.set(segment.address, {
          address: segment.address,
          size: segment.totalSize,
          kind: segment.kind,
        });
      }
    }
    for (let row = this.#count - 1; row >= 0; row--) {
      const address = this.#address[row];
      const size = this.#size[row];
      switch (this.#action[row]) {
        case A.segment_alloc: {
          const segment = fixed.get(address);
          if (segment === undefined || segment.size !== size) {
            throw this.#contradiction(
              row,
              `the segment at ${hex(address)} (${formatBytes(size)}) is allocated, but is neither freed later nor in the snapshot`,
            );
          }
          fixed.delete(address);
          break;
        }
        case A.segment_free:
          if (fixed.has(address)) {
            throw this.#contradiction(
              row,
              `the segment at ${hex(address)} is freed, but is there afterwards without having been allocated again`,
            );
          }
          fixed.set(address, { address, size, kind: fixedKind(size) });
          break;
        case A.segment_map:
          if (!mapped.remove(address, address + size)) {
            throw this.#contradiction(
              row,
              `${formatBytes(size)} are mapped at ${hex(address)}, but are neither unmapped later nor in the snapshot`,
            );
          }
          break;
        case A.segment_unmap:
          if (!mapped.add(address, address + size)) {
            throw this.#contradiction(
              row,
              `${formatBytes(size)} are unmapped at ${hex(address)}, but are there afterwards without having been mapped again`,
            );
          }
          break;
      }
    }
    const ranges = mapped.list().map(
      ({ start, end }): BaselineSegment => ({
        address: start,
        size: end - start,
        kind: 'expandable',
      }),
    );
    return [...fixed.values(), ...ranges].sort((a, b) => a.address - b.address);
  }

  /** Binds every free to its allocation, and finds the blocks that were live at the start. */
  #matchFrees(): void {
    const { entries } = this.#snapshot;
    const stream = entries.stream.view();
    // Address -> who is there: a row, or count + index of a baseline block; let go of: the same, as -2 - value.
    const holder = new Map<number, number>();
    const baseline = (block: Omit<BaselineBlock, 'low' | 'high'>): number => {
      this.#baseline.push({ ...block, low: 0, high: 0 });
      return this.#count + this.#baseline.length - 1;
    };
    const reference = (value: number): number =>
      value < this.#count ? value : -1 - (value - this.#count);
    for (let row = 0; row < this.#count; row++) {
      const address = this.#address[row];
      switch (this.#action[row]) {
        case A.alloc: {
          const there = holder.get(address);
          if (there !== undefined && there !== FREED) {
            throw this.#contradiction(row, `${hex(address)} is allocated while it is in use`);
          }
          holder.set(address, row);
          break;
        }
        case A.free_requested: {
          let there = holder.get(address);
          if (there === undefined) {
            there = baseline({
              address,
              requested: this.#size[row],
              stack: 0,
              stream: entries.streams[stream[this.#first + row]],
              pending: false,
            });
          } else if (there < 0) {
            throw this.#contradiction(row, `${hex(address)} is freed, but was free already`);
          } else if (there < this.#count && this.#size[there] !== this.#size[row]) {
            throw this.#contradiction(
              row,
              `${hex(address)} is freed with ${this.#size[row]} bytes, but was allocated with ${this.#size[there]}`,
            );
          }
          this.#target[row] = reference(there);
          holder.set(address, -2 - there);
          break;
        }
        case A.free_completed: {
          const there = holder.get(address);
          if (there === undefined) {
            // It waited for a stream when the history began.
            const index = baseline({
              address,
              requested: this.#size[row],
              stack: 0,
              stream: entries.streams[stream[this.#first + row]],
              pending: true,
            });
            this.#target[row] = reference(index);
          } else if (there >= FREED) {
            throw this.#contradiction(
              row,
              `the free of ${hex(address)} is completed, but was never requested`,
            );
          } else this.#target[row] = reference(-2 - there);
          holder.set(address, FREED);
          break;
        }
      }
    }
    this.#checkFinalBlocks(holder, baseline);
  }

  /** What is live at the end must be what the snapshot's blocks say. */
  #checkFinalBlocks(
    holder: ReadonlyMap<number, number>,
    baseline: (block: Omit<BaselineBlock, 'low' | 'high'>) => number,
  ): void {
    const live = new Set<number>();
    for (const segment of this.#segments) {
      for (const block of segment.blocks) {
        if (block.state === 'inactive') continue;
        live.add(block.address);
        const there = holder.get(block.address);
        if (there === FREED) {
          throw this.#contradiction(
            this.#count,
            `the snapshot has a live block at ${hex(block.address)}, which the history freed`,
          );
        }
        if (there === undefined) {
          baseline({
            address: block.address,
            requested: block.requestedSize,
            stack: block.stack,
            stream: segment.stream,
            pending: block.state === 'active_pending_free',
          });
          const added = this.#baseline[this.#baseline.length - 1];
          added.low = block.size;
          added.high = block.size;
          continue;
        }
        if (there >= 0 && there < this.#count) {
          if (this.#size[there] !== block.requestedSize) {
            throw this.#contradiction(
              there,
              `${this.#size[there]} bytes are allocated at ${hex(block.address)}; the snapshot's block there was asked for ${block.requestedSize}`,
            );
          }
          this.#low[there] = block.size;
          this.#high[there] = block.size;
        }
      }
    }
    for (const [address, there] of holder) {
      if (there !== FREED && !live.has(address)) {
        throw this.#contradiction(
          this.#count,
          `the block at ${hex(address)} is live at the end of the history, but not in the snapshot`,
        );
      }
    }
  }

  /** Replays the history over the segments, giving every allocation its block and checking reserved = active + cached. */
  #sizeBlocks(segments: readonly BaselineSegment[]): void {
    const map = new BlockMap();
    const mapped = new AddressRanges();
    let reserved = 0;
    this.#layBaseline(map, mapped, segments);
    for (const segment of segments) reserved += segment.size;
    for (let row = 0; row < this.#count; row++) {
      const address = this.#address[row];
      const size = this.#size[row];
      switch (this.#action[row]) {
        case A.segment_alloc:
          if (map.at(address) !== undefined || map.openAround(address) !== undefined) {
            throw this.#contradiction(
              row,
              `a segment is allocated inside another at ${hex(address)}`,
            );
          }
          map.reserve(address, size, fixedKind(size));
          reserved += size;
          break;
        case A.segment_free: {
          const block = map.at(address);
          if (block === undefined || block.live || block.size !== size) {
            throw this.#contradiction(
              row,
              `the segment at ${hex(address)} is freed, but is not one free block of ${formatBytes(size)}`,
            );
          }
          map.remove(block);
          reserved -= size;
          break;
        }
        case A.segment_map:
          this.#map(map, mapped, address, size, row);
          reserved += size;
          break;
        case A.segment_unmap:
          this.#unmap(map, mapped, address, size, row);
          reserved -= size;
          break;
        case A.alloc:
          this.#place(map, row, address, size);
          break;
        case A.free_completed: {
          const block = map.at(address);
          if (block === undefined || !block.live) {
            throw this.#contradiction(row, `no live block starts at ${hex(address)}`);
          }
          map.release(block);
          break;
        }
      }
      if (map.activeBytes + map.freeBytes !== reserved) {
        throw this.#contradiction(
          row,
          `reserved is ${reserved} bytes, but active ${map.activeBytes} and cached ${map.freeBytes} do not add up to it`,
        );
      }
    }
    for (let row = 0; row < this.#count; row++) {
      if (this.#action[row] === A.alloc && this.#low[row] !== this.#high[row]) this.#bounded++;
    }
    for (const block of this.#baseline) if (block.low !== block.high) this.#bounded++;
    this.#checkFinalMap(map);
  }

  #layBaseline(map: BlockMap, mapped: AddressRanges, segments: readonly BaselineSegment[]): void {
    const blocks = [...this.#baseline].sort((a, b) => a.address - b.address);
    let next = 0;
    for (const segment of segments) {
      const end = segment.address + segment.size;
      if (segment.kind === 'expandable') mapped.add(segment.address, end);
      let rest = map.reserve(segment.address, segment.size, segment.kind);
      while (next < blocks.length && blocks[next].address < end) {
        const block = blocks[next++];
        if (block.address < rest.address) {
          throw this.#contradiction(
            0,
            `the block at ${hex(block.address)}, live before the history, overlaps another or lies outside every segment`,
          );
        }
        if (block.address > rest.address) {
          map.splitFront(rest, block.address - rest.address);
          rest = rest.next as MappedBlock;
        }
        const following =
          next < blocks.length && blocks[next].address < end ? blocks[next] : undefined;
        const room = (following?.address ?? end) - block.address;
        if (block.high === 0) {
          const rounded = roundSize(block.requested, this.#config);
          const bounds = blockBounds(room, rounded, segment.kind, {
            maxSplitSize: this.#config.maxSplitSize,
          });
          block.low = bounds.low;
          block.high = bounds.high;
        }
        if (block.high > room) {
          throw this.#contradiction(
            0,
            `the block at ${hex(block.address)}, live before the history, reaches into the next one`,
          );
        }
        const open = block.low !== block.high;
        const taken = open ? room : block.high;
        if (taken < rest.size) map.splitFront(rest, taken);
        const after = rest.next;
        map.take(rest, open);
        if (after === undefined || after.address >= end) break;
        rest = after;
      }
    }
    if (next < blocks.length) {
      throw this.#contradiction(
        0,
        `the block at ${hex(blocks[next].address)}, live before the history, lies outside every segment`,
      );
    }
  }

  #place(map: BlockMap, row: number, address: number, size: number): void {
    let free = map.at(address);
    if (free === undefined) {
      const open = map.openAround(address);
      if (open !== undefined) {
        this.#pin(map, open, address - open.address, row);
        free = map.at(address);
      }
    }
    if (free === undefined || free.live) {
      throw this.#contradiction(
        row,
        `${formatBytes(size)} are allocated at ${hex(address)}, where no free block starts`,
      );
    }
    const rounded = roundSize(size, this.#config);
    if (rounded > free.size) {
      throw this.#contradiction(
        row,
        `${formatBytes(size)} are allocated at ${hex(address)}, where only ${formatBytes(free.size)} are free`,
      );
    }
    const rule = { maxSplitSize: this.#config.maxSplitSize };
    const derived = blockSizeFrom(free.size, rounded, free.kind, rule);
    const observed = this.#high[row];
    let taken = derived;
    let open = false;
    if (observed !== 0) {
      taken = observed;
      if (observed !== derived && !this.#isPrivate(row)) {
        throw this.#contradiction(
          row,
          `the snapshot's block at ${hex(address)} has ${observed} bytes; the allocator's split rule gives ${derived}`,
        );
      }
    } else if (this.#mayKeepWholeSegment(row, free)) {
      open = true;
      taken = free.size;
    }
    if (taken > free.size) {
      throw this.#contradiction(
        row,
        `the snapshot's block at ${hex(address)} is larger than the free block it was taken from`,
      );
    }
    if (observed === 0) {
      this.#low[row] = open ? rounded : derived;
      this.#high[row] = open ? free.size : derived;
    }
    if (taken < free.size) map.splitFront(free, taken);
    map.take(free, open);
    if (open) this.#openRows.set(free, row);
  }

  /** In the pool of a MemPool: `0,n` (c10::MempoolId_t). */
  #isPrivate(row: number): boolean {
    const { entries } = this.#snapshot;
    const pool = entries.pools.text(entries.pool.view()[this.#first + row]);
    return pool.startsWith('0,') && pool !== '0,0';
  }

  /** A MemPool made with no_split (torch 2.9 and later) gives each allocation a whole segment; the entry does not say so. */
  #mayKeepWholeSegment(row: number, free: MappedBlock): boolean {
    return free.previous === undefined && free.next === undefined && this.#isPrivate(row);
  }

  /** An allocation inside an open block's room shows where that block ends. */
  #pin(map: BlockMap, block: MappedBlock, size: number, row: number): void {
    const owner = this.#openRows.get(block);
    if (owner !== undefined) {
      if (size < this.#low[owner] || size > this.#high[owner]) {
        throw this.#contradiction(row, `${hex(this.#address[row])} lies inside a live block`);
      }
      this.#low[owner] = size;
      this.#high[owner] = size;
      this.#openRows.delete(block);
    } else {
      const baseline = this.#baselineAt(block.address);
      if (baseline === undefined || size < baseline.low || size > baseline.high) {
        throw this.#contradiction(row, `${hex(this.#address[row])} lies inside a live block`);
      }
      baseline.low = size;
      baseline.high = size;
    }
    map.closeAt(block, size);
  }

  #baselineAt(address: number): BaselineBlock | undefined {
    this.#baselineByAddress ??= new Map(this.#baseline.map((block) => [block.address, block]));
    return this.#baselineByAddress.get(address);
  }

  #map(map: BlockMap, mapped: AddressRanges, address: number, size: number, row: number): void {
    const before = mapped.covering(address - 1, address);
    const after = mapped.covering(address + size, address + size + 1);
    if (!mapped.add(address, address + size)) {
      throw this.#contradiction(row, `${hex(address)} is mapped twice`);
    }
    const last = before === undefined ? undefined : lastBlock(map.at(before.start));
    const block = map.reserve(address, size, 'expandable', last);
    const following = after === undefined ? undefined : map.at(after.start);
    if (following !== undefined) map.link(block, following);
    map.merge(block);
  }

  #unmap(map: BlockMap, mapped: AddressRanges, address: number, size: number, row: number): void {
    const range = mapped.covering(address, address + size);
    let block = range === undefined ? undefined : map.at(range.start);
    while (block !== undefined && block.address + block.size <= address) block = block.next;
    if (block === undefined || block.live || block.address + block.size < address + size) {
      throw this.#contradiction(
        row,
        `${formatBytes(size)} are unmapped at ${hex(address)}, but are not all free`,
      );
    }
    if (block.address < address) {
      map.splitFront(block, address - block.address);
      block = block.next as MappedBlock;
    }
    if (block.size > size) map.splitFront(block, size);
    map.remove(block);
    mapped.remove(address, address + size);
  }

  #checkFinalMap(map: BlockMap): void {
    for (const segment of this.#segments) {
      for (const observed of segment.blocks) {
        if (observed.state === 'inactive') continue;
        const block = map.at(observed.address);
        if (block === undefined || !block.live || (!block.open && block.size !== observed.size)) {
          throw this.#contradiction(
            this.#count,
            `the snapshot's block at ${hex(observed.address)} has ${observed.size} bytes, the history gives ${block?.size ?? 'none'}`,
          );
        }
      }
    }
  }

  #contradiction(row: number, detail: string): UserError {
    const where =
      row >= this.#count ? 'at the end of the history' : `at trace entry ${row} of ${this.#count}`;
    return new UserError(
      'HISTORY_CONTRADICTION',
      `the history of device ${this.#device} contradicts itself ${where}: ${detail}. No peak is given. ` +
        'Recording may have been switched off before the snapshot was dumped, or the file was edited.',
    );
  }
}

function lastBlock(first: MappedBlock | undefined): MappedBlock | undefined {
  let block = first;
  while (block?.next !== undefined) block = block.next;
  return block;
}

/** Small segments have 2 MiB, large ones at least 10 MiB (size_class.ts). */
function fixedKind(size: number): SegmentKind {
  return size === SMALL_SEGMENT_SIZE && size < MIN_OWN_SEGMENT_SIZE ? 'small' : 'large';
}

/** 10,000, 50,000, 100,000, 2^16, … : sizes that people give to a ring buffer. */
function isRound(count: number): boolean {
  if (count < 1000) return false;
  if (Number.isInteger(Math.log2(count))) return true;
  return /^[125]0+$/.test(String(count));
}

function hex(address: number): string {
  return `0x${address.toString(16)}`;
}
