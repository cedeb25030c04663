import { expect, test } from 'vitest';
import {
  alloc,
  begin,
  builtFrom,
  cpu,
  cuda,
  end,
  free,
  resize,
  traceOf,
} from '../../tests/traces/event_list.ts';
import { syntheticTrace } from '../../tests/traces/synthetic.ts';
import { MiB } from '../base/bytes.ts';
import { GpuDevice } from '../device/gpu_device.ts';
import { parseCapacity } from '../device/gpus.ts';
import { HostMemory } from '../device/host_memory.ts';
import { deviceForTrace } from '../device/trace_device.ts';
import type { Trace } from '../trace/trace.ts';
import { liveAt } from './live_set.ts';
import { mainDevice, replay } from './replay.ts';
import { MEMORY_KINDS } from './timeline.ts';

/** A GPU with nothing on it but the allocator. */
const gpu = (capacity = '80GiB') =>
  new GpuDevice({ capacity: parseCapacity(capacity), context: false, omitNccl: true });

const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);

test('a run without events leaves the device as it began', () => {
  const { peaks, final, phases, outOfMemory } = replay(traceOf([]), 1, gpu());
  for (const kind of MEMORY_KINDS) expect(peaks[kind]).toEqual({ bytes: 0, event: 0 });
  expect(final.resident).toBe(0);
  expect(phases).toEqual([]);
  expect(outOfMemory).toBeNull();
});

test('the main device is the first GPU, else the first device, else none', () => {
  expect(mainDevice(traceOf([cpu(0), cuda(1)]))).toBe(1);
  expect(mainDevice(traceOf([cpu(0)]))).toBe(0);
  expect(mainDevice(traceOf([]))).toBeUndefined();
});

test('storages of another device do not count', () => {
  const trace = traceOf([cuda(), cpu(), alloc(1, 4 * MiB), alloc(2, 8 * MiB, { device: 2 })]);
  expect(replay(trace, 1, gpu()).peaks.requested.bytes).toBe(4 * MiB);
  expect(replay(trace, 2, new HostMemory()).peaks.requested.bytes).toBe(8 * MiB);
});

test('a resize holds the new block beside the old one, and the peak stands there', () => {
  // ATen/native/cuda/Resize.cpp (torch 2.14.1): resize_bytes_cuda allocates and copies, then set_data_ptr lets the old block go.
  const trace = traceOf([cuda(), alloc(1, 20 * MiB), resize(1, 30 * MiB), resize(1, 0), free(1)]);
  const { peaks, series, final } = replay(trace, 1, gpu());
  expect(peaks.requested).toEqual({ bytes: 50 * MiB, event: 1 });
  expect(peaks.allocated).toEqual({ bytes: 50 * MiB, event: 1 });
  // Event 2 frees and gets nothing: what stood before it was 30 MiB.
  expect([...series.requested].map((bytes) => bytes / MiB)).toEqual([20, 50, 30, 0]);
  expect(final.allocated).toBe(0);
});

test('a storage of no bytes is no block', () => {
  const trace = traceOf([cuda(), alloc(1, 0), resize(1, 2 * MiB), free(1), alloc(2, 0), free(2)]);
  const { peaks, blockBytes, final } = replay(trace, 1, gpu());
  expect(peaks.allocated.bytes).toBe(2 * MiB);
  expect(blockBytes[0]).toBe(0);
  expect(final.allocated).toBe(0);
});

test('the peak of a phase counts what was carried in and what its inner phases hold', () => {
  const trace = traceOf([
    cuda(),
    alloc(1, 10 * MiB),
    begin(1, 'step'),
    alloc(2, 2 * MiB),
    begin(2, 'forward'),
    alloc(3, 20 * MiB),
    free(3),
    end(2),
    begin(3, 'backward'),
    end(3),
    end(1),
    alloc(4, 4 * MiB),
  ]);
  const { phases, peaks } = replay(trace, 1, new HostMemory());
  const table = phases.map(({ phase, before, after, peaks: { requested } }) => [
    phase.name,
    before.requested / MiB,
    after.requested / MiB,
    requested.bytes / MiB,
    requested.event,
  ]);
  expect(table).toEqual([
    ['step', 10, 12, 32, 4],
    ['forward', 12, 12, 32, 4],
    ['backward', 12, 12, 12, 7],
  ]);
  expect(peaks.requested).toEqual({ bytes: 32 * MiB, event: 4 });
});

test('a peak that only the whole run has stands outside every phase', () => {
  const trace = traceOf([cuda(), begin(1, 'init'), end(1), alloc(1, 6 * MiB)]);
  const { phases, peaks } = replay(trace, 1, new HostMemory());
  expect(phases[0].peaks.requested.bytes).toBe(0);
  expect(peaks.requested).toEqual({ bytes: 6 * MiB, event: 2 });
});

/** 20 and 40 MiB; the 40 are freed and cached; 60 MiB then do not fit into 70, even without the cache. */
const FULL: Trace = builtFrom([
  cuda(),
  begin(1, 'step', { step: 1 }),
  alloc(1, 20 * MiB),
  alloc(2, 40 * MiB),
  free(2),
  alloc(3, 60 * MiB),
  free(1),
  alloc(4, 4 * MiB),
]);

test('the replay ends where the device is full, as the job would', () => {
  const timeline = replay(FULL, 1, gpu('70MiB'));
  expect(timeline.length).toBe(5);
  expect(timeline.outOfMemory).toMatchObject({
    event: 4,
    kind: 'allocator',
    requestedBytes: 60 * MiB,
  });
  expect(timeline.outOfMemory?.message).toMatch(/^CUDA out of memory. Tried to allocate 60.00 MiB/);
  // The retry gave back 40 MiB of cache before it failed; the device was full with them.
  expect(timeline.outOfMemory?.instant).toMatchObject({
    allocated: 20 * MiB,
    reserved: 60 * MiB,
    resident: 60 * MiB,
  });
  // The open phase ends there and nothing later is seen.
  expect(timeline.phases).toHaveLength(1);
  expect(timeline.peaks.allocated).toEqual({ bytes: 60 * MiB, event: 2 });
});

test('the block that was not given is not live', () => {
  const timeline = replay(FULL, 1, gpu('70MiB'));
  expect(liveAt(timeline, 4).map(({ storage }) => storage)).toEqual([1]);
  expect(liveAt(timeline, 99).map(({ storage }) => storage)).toEqual([1]);
});

test('the device stands as it did at the event where the replay is told to end', () => {
  const device = gpu();
  const timeline = replay(FULL, 1, device, { until: 2 });
  expect(timeline.length).toBe(3);
  expect(device.counters.allocated).toBe(60 * MiB);
});

test('a freed block that waits for a stream is still requested, as it is in PyTorch', () => {
  // PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp: `free` takes it off allocated, `free_block` off active and requested.
  const trace = traceOf([
    cuda(),
    alloc(1, 2 * MiB),
    { type: 'record_stream', storage: 1, stream: 7 },
    free(1),
  ]);
  const { final } = replay(trace, 1, gpu());
  expect([final.requested, final.allocated, final.active].map((bytes) => bytes / MiB)).toEqual([
    2, 0, 2,
  ]);
});

test('without its storages a trace takes nothing from the allocator', () => {
  const { peaks } = replay(syntheticTrace(), 0, gpu(), { storages: false });
  expect(peaks.reserved.bytes).toBe(0);
});

test('of a resize both blocks are live during it, and only the new one after', () => {
  const trace = traceOf([cuda(), alloc(1, 2 * MiB), resize(1, 4 * MiB), alloc(2, 512)]);
  const timeline = replay(trace, 1, gpu());
  const blocks = (event: number) =>
    liveAt(timeline, event).map(({ storage, madeBy, requested }) => [storage, madeBy, requested]);
  expect(blocks(0)).toEqual([[1, 0, 2 * MiB]]);
  expect(blocks(1)).toEqual([
    [1, 0, 2 * MiB],
    [1, 1, 4 * MiB],
  ]);
  expect(blocks(2)).toEqual([
    [1, 1, 4 * MiB],
    [2, 2, 512],
  ]);
});

test('a block has the owner that claims it first when nobody has claimed it yet', () => {
  const trace = traceOf([
    cuda(),
    alloc(1, 2 * MiB),
    { type: 'owner', storage: 1, category: 2, name: 0 },
    { type: 'owner', storage: 1, category: 1, name: 0 },
  ]);
  const timeline = replay(trace, 1, gpu());
  expect([0, 1, 2].map((event) => liveAt(timeline, event)[0].owner)).toEqual([2, 2, 1]);
});

test('what is live sums up to the series at every event', () => {
  const trace = syntheticTrace({ layers: 3, temporaries: 1, microBatches: 2 });
  const timeline = replay(trace, 0, deviceForTrace(trace.header).device);
  let compared = 0;
  for (let event = 0; event < timeline.length; event++) {
    const blocks = liveAt(timeline, event);
    const { requested, allocated, active } = timeline.series;
    expect(sum(blocks.map(({ block }) => block)), `event ${event}`).toBe(allocated[event]);
    // A block that waits for a stream is still requested, as it is still active.
    if (active[event] !== allocated[event]) continue;
    compared++;
    expect(sum(blocks.map((block) => block.requested)), `event ${event}`).toBe(requested[event]);
  }
  expect(compared).toBeGreaterThan(timeline.length / 2);
});

test('every peak is the largest value of its series, and resident is of one instant', () => {
  const trace = syntheticTrace();
  const { series, peaks } = replay(trace, 0, deviceForTrace(trace.header).device);
  for (const kind of ['requested', 'allocated', 'active', 'reserved', 'external'] as const) {
    expect(peaks[kind].bytes, kind).toBe(Math.max(...series[kind]));
    expect(series[kind][peaks[kind].event], kind).toBe(peaks[kind].bytes);
  }
  const resident = series.reserved.map((reserved, i) => reserved + series.external[i]);
  expect(peaks.resident.bytes).toBe(Math.max(...resident));
});
