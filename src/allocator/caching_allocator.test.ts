// What the comparison with the real allocator (tests/oracle) cannot show: a measurement on a GPU, the interface, and properties
// that hold for every sequence of calls.

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { GiB, MiB } from '../base/bytes.ts';
import type { Block } from './block.ts';
import { CachingAllocator } from './caching_allocator.ts';
import { FixedDriverMemory } from './driver.ts';
import { OutOfMemoryError } from './out_of_memory.ts';
import { StreamClock } from './stream_clock.ts';
import type { TraceAction } from './trace_entry.ts';

/** Of a GB200 (cudaDeviceProp.totalGlobalMem). */
const GB200 = 197_940_150_272;

// Measured on a GB200 with torch 2.15.0.dev20260928+cu130, 2026-10-07; published in elfiegg/memTracker,
// docs/allocator-experiments.md.
describe.each([
  { conf: '', reserved: [50331648, 50331648, 71303168, 0] },
  { conf: 'expandable_segments:True', reserved: [62914560, 62914560, 62914560, 0] },
])('reserved memory measured on a GB200, conf "$conf"', ({ conf, reserved }) => {
  test('three 16 MiB, then three 14 MiB in their place, then 5 MiB, then nothing', () => {
    const allocator = new CachingAllocator({ driver: new FixedDriverMemory(GB200), conf });
    const seen: { allocated: number; reserved: number }[] = [];
    const look = () => seen.push({ allocated: allocator.allocated, reserved: allocator.reserved });
    const first = [16, 16, 16].map((size) => allocator.malloc(size * MiB));
    look();
    for (const block of first) allocator.free(block);
    const second = [14, 14, 14].map((size) => allocator.malloc(size * MiB));
    look();
    second.push(allocator.malloc(5 * MiB));
    look();
    for (const block of second) allocator.free(block);
    allocator.emptyCache();
    look();
    expect(seen.map((each) => each.allocated)).toEqual([50331648, 44040192, 49283072, 0]);
    expect(seen.map((each) => each.reserved)).toEqual(reserved);
  });
});

test('an out-of-memory error carries what was asked, what was tried and the room that was left', () => {
  const driver = new FixedDriverMemory(100 * MiB);
  const allocator = new CachingAllocator({ driver });
  allocator.malloc(90 * MiB);
  try {
    allocator.malloc(5 * MiB);
    expect.unreachable();
  } catch (error) {
    expect(error).toBeInstanceOf(OutOfMemoryError);
    const { facts, rejected } = error as OutOfMemoryError;
    expect(rejected).toBe(false);
    expect(facts).toMatchObject({
      requested: 5 * MiB,
      segmentSize: 20 * MiB,
      deviceFree: 10 * MiB,
      deviceTotal: 100 * MiB,
    });
  }
});

test('memory that others take makes an allocation fail at the event where it no longer fits', () => {
  const driver = new FixedDriverMemory(100 * MiB);
  const allocator = new CachingAllocator({ driver });
  const block = allocator.malloc(40 * MiB);
  driver.external = 50 * MiB;
  expect(() => allocator.malloc(20 * MiB)).toThrow(OutOfMemoryError);
  allocator.free(block);
  // The cached 40 MiB go back to the driver first.
  expect(allocator.malloc(44 * MiB).size).toBe(44 * MiB);
  expect(allocator.reserved).toBe(44 * MiB);
});

test('a block used on another stream comes back at the first malloc after that stream has passed', () => {
  const clock = new StreamClock('on_request');
  const actions: TraceAction[] = [];
  const allocator = new CachingAllocator({
    driver: new FixedDriverMemory(GiB),
    clock,
    listener: { entry: (action) => actions.push(action) },
  });
  const block = allocator.malloc(4 * MiB);
  allocator.recordStream(block, 0x1000);
  allocator.free(block);
  expect(allocator.allocated).toBe(0);
  expect(allocator.active).toBe(4 * MiB);
  allocator.malloc(512);
  expect(actions).not.toContain('free_completed');
  allocator.synchronize(0x1000);
  expect(actions).not.toContain('free_completed');
  allocator.malloc(512);
  expect(actions).toContain('free_completed');
  expect(allocator.active).toBe(1024);
});

test('freeing a block twice is an error of the caller', () => {
  const allocator = new CachingAllocator({ driver: new FixedDriverMemory(GiB) });
  const block = allocator.malloc(1);
  allocator.free(block);
  expect(() => allocator.free(block)).toThrow('is not allocated');
});

test('an allocation of nothing is an error of the caller', () => {
  const allocator = new CachingAllocator({ driver: new FixedDriverMemory(GiB) });
  expect(() => allocator.malloc(0)).toThrow(RangeError);
  expect(() => allocator.malloc(-1)).toThrow(RangeError);
  expect(() => allocator.malloc(1.5)).toThrow(RangeError);
});

test('resetting peaks brings them down to what is in use', () => {
  const allocator = new CachingAllocator({ driver: new FixedDriverMemory(GiB) });
  const block = allocator.malloc(32 * MiB);
  allocator.malloc(2 * MiB);
  allocator.free(block);
  expect(allocator.peakAllocated).toBe(34 * MiB);
  allocator.resetPeak();
  expect(allocator.peakAllocated).toBe(2 * MiB);
  expect(allocator.peakReserved).toBe(52 * MiB);
});

test('where PyTorch lowers max_split_size under a split block it is said to be undefined, once it matters', () => {
  const reasons: string[] = [];
  const allocator = new CachingAllocator({
    driver: new FixedDriverMemory(400 * MiB),
    onUndefined: (reason) => reasons.push(reason),
  });
  allocator.free(allocator.malloc(200 * MiB));
  allocator.malloc(20 * MiB);
  allocator.setConf('max_split_size_mb:64');
  expect(reasons).toEqual([]);
  expect(() => allocator.malloc(250 * MiB)).toThrow(OutOfMemoryError);
  expect(reasons).toHaveLength(1);
  expect(reasons[0]).toContain('max_split_size_mb');
});

// Properties.

const STREAMS = [0, 0x1000, 0x2000];
const CONFS = [
  '',
  'expandable_segments:True',
  'max_split_size_mb:32',
  'roundup_power2_divisions:4',
  'garbage_collection_threshold:0.5,per_process_memory_fraction:0.9',
  'expandable_segments:True,large_segment_size_mb:32',
];

const size = fc.oneof(
  fc.integer({ min: 1, max: 4096 }),
  fc.integer({ min: 1, max: 2 * MiB }),
  fc.integer({ min: MiB, max: 64 * MiB }),
  fc.constantFrom(MiB, MiB + 1, 10 * MiB - 512, 10 * MiB, 20 * MiB),
);

const call = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({ do: fc.constant('malloc' as const), size, stream: fc.nat() }),
  },
  { weight: 5, arbitrary: fc.record({ do: fc.constant('free' as const), which: fc.nat() }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('record' as const), which: fc.nat(), stream: fc.nat() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('pass' as const), stream: fc.nat() }) },
  { weight: 1, arbitrary: fc.constant({ do: 'empty' as const }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('external' as const), size }) },
);
type Call = typeof call extends fc.Arbitrary<infer T> ? T : never;

class Program {
  readonly driver = new FixedDriverMemory(512 * MiB);
  readonly clock = new StreamClock('on_request');
  readonly allocator: CachingAllocator;
  readonly live: Block[] = [];

  constructor(conf: string) {
    this.allocator = new CachingAllocator({ driver: this.driver, clock: this.clock, conf });
  }

  run(call: Call): void {
    const { allocator, live } = this;
    const stream = 'stream' in call ? STREAMS[call.stream % STREAMS.length] : 0;
    if (call.do === 'malloc') {
      try {
        live.push(allocator.malloc(call.size, stream));
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
      }
    } else if (call.do === 'empty') allocator.emptyCache();
    else if (call.do === 'pass') this.clock.complete(stream);
    else if (call.do === 'external') this.driver.external = call.size;
    else if (live.length > 0) {
      const at = call.which % live.length;
      if (call.do === 'record') allocator.recordStream(live[at], stream);
      else allocator.free(live.splice(at, 1)[0]);
    }
  }
}

function property(check: (program: Program) => void, atEnd = false): void {
  fc.assert(
    fc.property(
      fc.constantFrom(...CONFS),
      fc.array(call, { minLength: 1, maxLength: 120 }),
      (conf, calls) => {
        const program = new Program(conf);
        for (const each of calls) {
          program.run(each);
          if (!atEnd) check(program);
        }
        if (atEnd) check(program);
      },
    ),
    { numRuns: 300 },
  );
}

test('reserved is allocated, pending and cached, always', () => {
  property(({ allocator, driver }) => {
    const bytes = { active_allocated: 0, active_pending_free: 0, inactive: 0 };
    let requested = 0;
    for (const segment of allocator.snapshot()) {
      for (const block of segment.blocks) {
        bytes[block.state] += block.size;
        if (block.state !== 'inactive') requested += block.requested_size;
      }
    }
    expect(bytes.active_allocated).toBe(allocator.allocated);
    expect(bytes.active_pending_free).toBe(allocator.active - allocator.allocated);
    expect(bytes.active_allocated + bytes.active_pending_free + bytes.inactive).toBe(
      allocator.reserved,
    );
    expect(requested).toBe(allocator.requested);
    expect(driver.taken).toBe(allocator.reserved);
    expect(allocator.stats.get('reserved_bytes')).toBe(allocator.reserved);
  });
});

test('no two blocks overlap, blocks fill their segments, and live blocks are where they were put', () => {
  property(({ allocator, live }) => {
    let end = 0;
    const allocated = new Map<number, number>();
    for (const segment of allocator.snapshot()) {
      expect(segment.address).toBeGreaterThanOrEqual(end);
      let at = segment.address;
      for (const block of segment.blocks) {
        expect(block.address).toBe(at);
        expect(block.size % 512).toBe(0);
        at += block.size;
        if (block.state === 'active_allocated') allocated.set(block.address, block.size);
      }
      end = segment.address + segment.total_size;
      expect(at).toBe(end);
    }
    expect(allocated.size).toBe(live.length);
    for (const block of live) {
      expect(allocated.get(block.ptr)).toBe(block.size);
      expect(block.size).toBeGreaterThanOrEqual(block.requested);
    }
  });
});

test('freeing everything and emptying the cache gives all memory back', () => {
  property(({ allocator, driver, live }) => {
    for (const block of live) allocator.free(block);
    allocator.emptyCache();
    expect(allocator.snapshot()).toEqual([]);
    expect(allocator.reserved).toBe(0);
    expect(allocator.active).toBe(0);
    expect(allocator.requested).toBe(0);
    expect(driver.taken).toBe(0);
    expect(allocator.stats.get('inactive_split_bytes')).toBe(0);
    expect(allocator.stats.get('segment')).toBe(0);
  }, true);
});
