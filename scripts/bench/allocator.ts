// How fast and how small the caching allocator is, beside the real one of PyTorch (C++, over the fake CUDA of tests/oracle)
// on the same events in the same run. Times are of the processor, not of the clock: the machine may be shared.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { Block } from '../../src/allocator/block.ts';
import { CachingAllocator } from '../../src/allocator/caching_allocator.ts';
import { FixedDriverMemory } from '../../src/allocator/driver.ts';
import { GiB } from '../../src/base/bytes.ts';
import { pythonOfJudge, whyNoJudge } from '../../tests/oracle/judge.ts';
import type { Benchmark, Measurement } from './benchmark.ts';
import { type AllocationEvents, trainingEvents } from './training_events.ts';

const CAPACITY = 80 * GiB;
const EVENTS = 10_000_000;
const WARM_UP_STEPS = 20;
const LIVE_BLOCKS = 500_000;

export const benchmark: Benchmark = {
  name: 'allocator',
  summary: `${EVENTS.toLocaleString('en-US')} allocations and frees of a training-like trace`,
  async run() {
    const measurements: Measurement[] = [];
    for (const conf of ['', 'expandable_segments:True']) {
      const kind = conf === '' ? 'fixed segments' : 'expandable segments';
      const model = timeModel(conf);
      const speed = model.events / model.seconds;
      measurements.push(
        {
          what: `${kind}: events a second of one core`,
          value: speed,
          unit: '1/s',
          limit: { at: 'least', value: 2_000_000 },
        },
        {
          what: `${kind}: heap growth over ${EVENTS / 1e6} M events`,
          value: model.heapGrowth / 1024,
          unit: 'KiB',
          limit: { at: 'most', value: 1024 },
        },
      );
      const real = timeReal(conf);
      if (typeof real === 'string') {
        measurements.push({ what: `${kind}: real allocator not run: ${real}`, value: 0, unit: '' });
        continue;
      }
      if (real.reserved !== model.reserved) {
        throw new Error(`reserved ${model.reserved}, the real allocator ${real.reserved}`);
      }
      measurements.push(
        { what: `${kind}: real allocator (C++)`, value: real.events / real.seconds, unit: '1/s' },
        {
          what: `${kind}: speed beside the real allocator`,
          value: speed / (real.events / real.seconds),
          unit: 'times',
        },
      );
    }
    measurements.push({
      what: 'memory of a live block',
      value: bytesOfLiveBlock(),
      unit: 'bytes',
      limit: { at: 'most', value: 200 },
    });
    return measurements;
  },
};

interface Timing {
  /** Of processor time. */
  readonly seconds: number;
  readonly events: number;
  readonly reserved: number;
}

function timeModel(conf: string): Timing & { readonly heapGrowth: number } {
  const { start, step } = trainingEvents();
  const allocator = new CachingAllocator({ driver: new FixedDriverMemory(CAPACITY), conf });
  const blocks: Block[] = [];
  play(allocator, start, blocks);
  for (let i = 0; i < WARM_UP_STEPS; i++) play(allocator, step, blocks);
  const repeats = repeatsOf(step);
  const before = heapUsed();
  const begin = process.cpuUsage();
  for (let i = 0; i < repeats; i++) play(allocator, step, blocks);
  const { user, system } = process.cpuUsage(begin);
  const seconds = (user + system) / 1e6;
  const heapGrowth = heapUsed() - before;
  return { seconds, events: repeats * step.slots.length, reserved: allocator.reserved, heapGrowth };
}

function play(allocator: CachingAllocator, events: AllocationEvents, blocks: Block[]): void {
  const { slots, sizes } = events;
  for (let i = 0; i < slots.length; i++) {
    if (sizes[i] > 0) blocks[slots[i]] = allocator.malloc(sizes[i]);
    else allocator.free(blocks[slots[i]]);
  }
}

function repeatsOf(step: AllocationEvents): number {
  return Math.ceil(EVENTS / step.slots.length);
}

function timeReal(conf: string): Timing | string {
  const reason = whyNoJudge();
  if (reason !== null) return reason;
  const { start, step } = trainingEvents();
  const repeats = repeatsOf(step);
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-bench-'));
  try {
    const file = join(folder, 'events.json');
    const json = { capacity: CAPACITY, conf, repeats, start: asJson(start), step: asJson(step) };
    writeFileSync(file, JSON.stringify(json));
    const script = join(import.meta.dirname, '../../tests/oracle/real_speed.py');
    const done = spawnSync(pythonOfJudge(), ['-W', 'ignore', script, file], { encoding: 'utf8' });
    if (done.status !== 0) return done.stderr.trim();
    const result = JSON.parse(done.stdout) as { seconds: number; reserved: number };
    return { ...result, events: repeats * step.slots.length };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function asJson(events: AllocationEvents): object {
  return {
    slots: [...events.slots],
    sizes: [...events.sizes],
    slot_count: events.slotCount,
  };
}

/** Heap of the allocator with many live blocks, for each of them. The caller's own array of blocks is not counted. */
function bytesOfLiveBlock(): number {
  const blocks = new Array<Block | null>(LIVE_BLOCKS).fill(null);
  const before = heapUsed();
  const allocator = new CachingAllocator({ driver: new FixedDriverMemory(1024 * GiB) });
  for (let i = 0; i < LIVE_BLOCKS; i++) blocks[i] = allocator.malloc(1 + ((i * 7919) % 1_000_000));
  const bytes = (heapUsed() - before) / LIVE_BLOCKS;
  if (allocator.stats.get('allocation') !== LIVE_BLOCKS) throw new Error('a block was lost');
  return bytes;
}

function heapUsed(): number {
  setFlagsFromString('--expose_gc');
  const collect = runInNewContext('gc') as () => void;
  collect();
  collect();
  return process.memoryUsage().heapUsed;
}
