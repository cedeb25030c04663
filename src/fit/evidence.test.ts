import { expect, test } from 'vitest';
import { alloc, begin, cpu, cuda, end, free, traceOf } from '../../tests/traces/event_list.ts';
import { GiB } from '../base/bytes.ts';
import { deviceForTrace } from '../device/trace_device.ts';
import type { Trace } from '../trace/trace.ts';
import { evidenceOf } from './evidence.ts';

const ROLE = { label: 'all', representative: 0, ranks: 1, stage: null };

function evidence(trace: Trace, capacity: number, margin = 0, firstStepOnly = false) {
  return evidenceOf({
    role: ROLE,
    path: 'run.mtrace',
    trace,
    capacity,
    margin,
    device: ({ header }, _id, bound, usableBytes) =>
      deviceForTrace(header, { bound, usableBytes }).device,
    firstStepOnly,
    missing: [],
  });
}

/** 4 GiB in the first step, 8 GiB in the second. */
const TWO_STEPS = traceOf([
  cuda(),
  begin(1, 'step', { step: 1 }),
  alloc(1, 4 * GiB),
  end(1),
  begin(2, 'step', { step: 2 }),
  alloc(2, 4 * GiB),
  free(2),
  end(2),
]);

test('a job that only uses the host proves nothing about a GPU', () => {
  const host = traceOf([cpu(1), alloc(1, GiB)]);
  expect(evidence(host, 80 * GiB).faults).toEqual(['no tensor was ever made on a GPU']);
  const declared = traceOf([cuda(3), cpu(1), alloc(1, GiB)]);
  expect(evidence(declared, 80 * GiB).faults).toEqual(['no tensor was ever made on a GPU']);
});

test('what is short is what was asked for less what was free', () => {
  const { low, residentPeak } = evidence(TWO_STEPS, 7 * GiB);
  expect(low).toMatchObject({ phase: 'step[step=2]', requestedBytes: 4 * GiB });
  // 3 GiB less the CUDA context are free where 4 GiB are asked for.
  expect(low?.shortBytes).toBeGreaterThan(GiB);
  expect(low?.shortBytes).toBeLessThan(2 * GiB);
  expect(residentPeak.likely).toBeGreaterThan(8 * GiB);
});

test('the margin is taken off for the upper bound only', () => {
  const { low, high } = evidence(TWO_STEPS, 10 * GiB, 5 * GiB);
  expect(low).toBeNull();
  expect(high).toMatchObject({ phase: 'step[step=2]' });
});

test('the first step alone ends before the second', () => {
  expect(evidence(TWO_STEPS, 7 * GiB, 0, true).low).toBeNull();
});

test('a first step that no phase names is judged by the whole run, and that is said', () => {
  const unnamed = traceOf([cuda(), begin(1, 'forward', {}), alloc(1, 4 * GiB), end(1)]);
  const fits = evidence(unnamed, 80 * GiB, 0, true);
  expect([fits.low, fits.high, fits.faults]).toEqual([null, null, []]);
  expect(fits.assumptions).toEqual([
    'scenario first_step: no phase of the run says which step it is, so all of its steps were judged',
  ]);
  // That a later step may be the one that does not fit leaves it unproven.
  const full = evidence(unnamed, 2 * GiB, 0, true);
  expect(full.low).toBeNull();
  expect(full.faults).toEqual([
    'out of memory in forward, and no phase says whether that is the first step',
  ]);
});

test('a GPU that the CUDA context alone fills is full from the start', () => {
  const { low } = evidence(TWO_STEPS, GiB / 64);
  expect(low).toMatchObject({ kind: 'external', phase: 'the start, before any tensor' });
});
