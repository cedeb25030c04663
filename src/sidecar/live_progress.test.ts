import { expect, test } from 'vitest';
import { MiB } from '../base/bytes.ts';
import { toTuple } from '../protocol/codec.ts';
import type { SidecarEvent } from '../protocol/events.ts';
import { LiveProgress } from './live_progress.ts';

const PLACE = { stream: 0, pool: 0, op: 0, stack: 0, module: 0, pass: 0 };

function alloc(storage: number, bytes: number, device = 1): SidecarEvent {
  return { type: 'alloc', storage, bytes, device, tensor: 0, ...PLACE };
}

function seen(...events: SidecarEvent[]): LiveProgress {
  const progress = new LiveProgress(2);
  progress.see([
    toTuple({ type: 'device', id: 1, kind: 'cuda', index: 0, name: 'H100', properties: {} }),
    toTuple({ type: 'device', id: 2, kind: 'cpu', index: 0, name: 'host', properties: {} }),
    ...events.map(toTuple),
  ]);
  return progress;
}

test('before anything arrived Python is starting', () => {
  expect(new LiveProgress(2).line('rank 0')).toBe('rank 0: starting Python');
});

test('the live peak follows births, resizes and deaths of CUDA storages and leaves the host out', () => {
  const progress = seen(
    alloc(1, 10 * MiB),
    { type: 'resize', storage: 1, bytes: 30 * MiB, ...PLACE },
    alloc(2, 500 * MiB, 2),
    { type: 'free', storage: 1 },
    alloc(3, 20 * MiB),
    { type: 'free', storage: 2 },
  );
  expect(progress.livePeak).toBe(30 * MiB);
});

test('the line tells step, innermost phase, events and peak', () => {
  const progress = seen(
    { type: 'phase_begin', phase: 1, name: 'step', labels: { step: 1 }, time: 0 },
    { type: 'phase_begin', phase: 2, name: 'forward', labels: { micro_batch: 3 }, time: 0 },
    alloc(1, 3 * MiB),
  );
  expect(progress.line('rank 7')).toBe(
    'rank 7: step 1/2, forward[micro_batch=3], 5 events, live peak 3.00 MiB',
  );
  progress.see([toTuple({ type: 'phase_end', phase: 1, time: 1 })]);
  expect(progress.line('rank 7')).toBe('rank 7: step 1/2, 6 events, live peak 3.00 MiB');
});
