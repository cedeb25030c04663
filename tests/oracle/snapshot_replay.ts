// Replays the history of a real GPU's memory snapshot: the same allocations and frees go to the model, and what it asks of the
// driver is compared with what the GPU's allocator asked.

import type { Block } from '../../src/allocator/block.ts';
import { CachingAllocator } from '../../src/allocator/caching_allocator.ts';
import type { AllocatorConfig } from '../../src/allocator/config.ts';
import { FixedDriverMemory } from '../../src/allocator/driver.ts';
import { MiB, TiB } from '../../src/base/bytes.ts';
import type { History } from '../../src/measured/history/history.ts';
import { ACTIONS, type MemorySnapshot } from '../../src/measured/snapshot/snapshot.ts';

/** What one allocator, the GPU's or the model, did during the history. */
export interface DriverTraffic {
  /** `segment_alloc` and `segment_free` with their bytes, in order. */
  readonly segments: readonly (readonly [string, number])[];
  /** Of each allocation: number of its segment in the order of creation, and offset in it. */
  readonly placements: readonly string[];
  readonly peakReserved: number;
  readonly finalReserved: number;
}

export interface SnapshotReplay {
  readonly gpu: DriverTraffic;
  readonly model: DriverTraffic;
  /** Of the model, baseline included. */
  readonly peakAllocated: number;
}

interface Entry {
  readonly action: string;
  readonly address: number;
  readonly size: number;
  readonly stream: number;
}

/** What was there before the history; empty when it starts with an empty allocator. */
export type Baseline = Pick<History, 'baselineSegments' | 'baselineBlocks' | 'config'>;

export function replaySnapshot(
  snapshot: MemorySnapshot,
  device: number,
  baseline: Baseline,
): SnapshotReplay {
  const entries = entriesOf(snapshot, device);
  const gpu = new TrafficLog();
  const model = new TrafficLog();
  const allocator = new CachingAllocator({
    driver: new FixedDriverMemory(TiB),
    conf: baseline.config,
    listener: { entry: (action, address, size) => model.see(action, address, size) },
  });
  const live = rebuild(allocator, baseline);
  for (const { address, size } of baseline.baselineSegments)
    gpu.see('segment_alloc', address, size);
  gpu.start();
  model.start();
  let previous = '';
  for (const { action, address, size, stream } of entries) {
    gpu.see(action, address, size);
    if (action === 'alloc') live.set(address, allocator.malloc(size, stream));
    else if (action === 'free_requested') {
      const block = live.get(address);
      if (block === undefined) throw new Error(`free of ${address}, which is not allocated`);
      live.delete(address);
      allocator.free(block);
    } else if (action === 'segment_free' && previous !== 'segment_free') {
      // Without memory pressure segments are freed by torch.cuda.empty_cache(), all at once.
      allocator.emptyCache();
    }
    previous = action;
  }
  return {
    gpu: gpu.traffic(),
    model: model.traffic(),
    peakAllocated: allocator.peakAllocated,
  };
}

function entriesOf(snapshot: MemorySnapshot, device: number): Entry[] {
  const { entries } = snapshot;
  const trace = snapshot.deviceTraces.find((each) => each.device === device);
  if (trace === undefined) return [];
  const rows: Entry[] = [];
  for (let row = trace.first; row < trace.first + trace.count; row++) {
    rows.push({
      action: ACTIONS[entries.action.view()[row]],
      address: entries.address.view()[row],
      size: entries.size.view()[row],
      stream: entries.streams[entries.stream.view()[row]],
    });
  }
  return rows;
}

/**
 * Puts the segments and live blocks of the baseline into an empty allocator. First every segment is made with one full
 * allocation, in the order of addresses; then one after the other is emptied and cut into its blocks and gaps (no other has
 * room, so they fall into it in order); at last the gaps are freed.
 */
function rebuild(
  allocator: CachingAllocator,
  { baselineSegments, baselineBlocks }: Baseline,
): Map<number, Block> {
  const segments = [...baselineSegments].sort((a, b) => a.address - b.address);
  const blocks = [...baselineBlocks].sort((a, b) => a.address - b.address);
  const filled = segments.map(({ kind, size }) => {
    const pieces = kind === 'small' ? new Array<number>(size / MiB).fill(MiB) : [size];
    return pieces.map((piece) => allocator.malloc(piece));
  });
  const live = new Map<number, Block>();
  const gaps: Block[] = [];
  for (const [index, { address, size, kind }] of segments.entries()) {
    for (const block of filled[index]) allocator.free(block);
    const end = address + size;
    let at = address;
    const fillGap = (until: number): void => {
      while (at < until) {
        const piece = kind === 'small' ? Math.min(MiB, until - at) : until - at;
        gaps.push(allocator.malloc(piece));
        at += piece;
      }
    };
    for (const block of blocks) {
      if (block.address < address || block.address >= end) continue;
      fillGap(block.address);
      live.set(block.address, allocator.malloc(block.high));
      at += block.high;
    }
    fillGap(end);
  }
  for (const gap of gaps) allocator.free(gap);
  return live;
}

class TrafficLog {
  readonly #segments: (readonly [string, number])[] = [];
  readonly #placements: string[] = [];
  /** Live segments: address, size and number. */
  readonly #live: { readonly address: number; readonly size: number; readonly number: number }[] =
    [];
  #made = 0;
  #reserved = 0;
  #peak = 0;
  #started = false;

  /** What comes before is the baseline: it counts as reserved, and is not compared. */
  start(): void {
    this.#started = true;
    this.#peak = this.#reserved;
  }

  see(action: string, address: number, size: number): void {
    if (action === 'segment_alloc' || action === 'segment_map') {
      this.#live.push({ address, size, number: this.#made++ });
      this.#reserved += size;
      this.#peak = Math.max(this.#peak, this.#reserved);
    } else if (action === 'segment_free' || action === 'segment_unmap') {
      this.#live.splice(
        this.#live.findIndex((segment) => segment.address === address),
        1,
      );
      this.#reserved -= size;
    } else if (action === 'alloc' && this.#started) {
      const home = this.#live.find(
        (segment) => segment.address <= address && address < segment.address + segment.size,
      );
      this.#placements.push(home ? `${home.number}+${address - home.address}` : 'outside');
    }
    if (this.#started && action.startsWith('segment_')) this.#segments.push([action, size]);
  }

  traffic(): DriverTraffic {
    return {
      segments: this.#segments,
      placements: this.#placements,
      peakReserved: this.#peak,
      finalReserved: this.#reserved,
    };
  }
}

/** Settings of a history that starts with an empty allocator. */
export function emptyBaseline(config: AllocatorConfig): Baseline {
  return { baselineSegments: [], baselineBlocks: [], config };
}
