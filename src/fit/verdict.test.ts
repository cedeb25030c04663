import { expect, test } from 'vitest';
import { type Failure, judge, type RoleEvidence } from './verdict.ts';

const ROLE: RoleEvidence = {
  role: { label: 'pp=0', representative: 0, ranks: 8, stage: 0 },
  trace: 'run.mtrace',
  residentPeak: { low: 10, likely: 11, high: 12 },
  reservedPeak: 9,
  allocatedPeak: 8,
  peakPhase: 'step',
  liveMicroBatches: null,
  low: null,
  high: null,
  upperPeak: 12,
  retries: 0,
  missing: [],
  assumptions: [],
  faults: [],
};
const OTHER = { ...ROLE, role: { ...ROLE.role, label: 'pp=1', representative: 8, stage: 1 } };

const FAILURE: Failure = {
  kind: 'allocator',
  phase: 'forward',
  module: '',
  stack: [],
  requestedBytes: 4,
  shortBytes: 1,
  message: 'CUDA out of memory.',
};

test('a job fits when every role does and nothing is open', () => {
  expect(judge([ROLE, OTHER], [])).toMatchObject({ verdict: 'fits', reasons: [] });
});

test('the failure at the lower bound decides, whatever else is not known', () => {
  const full = { ...OTHER, low: FAILURE, missing: [{ what: 'kernel x', bytes: null }] };
  const { verdict, worst, reasons } = judge([ROLE, full], ['rank 3: the worker was killed']);
  expect(verdict).toBe('does_not_fit');
  expect(worst?.role.label).toBe('pp=1');
  expect(reasons).toEqual(['pp=1 runs out of memory in forward: CUDA out of memory.']);
});

test.each<[string, Partial<RoleEvidence>, string]>([
  ['the upper bound fails', { high: FAILURE }, 'pp=0: at the upper bound of memory outside'],
  [
    'something is not covered',
    { missing: [{ what: 'kernel x', bytes: 1 }] },
    'not covered: kernel x',
  ],
  ['the trace is not whole', { faults: ['the file is cut off'] }, 'pp=0: the file is cut off'],
  [
    'memory has no upper bound',
    { residentPeak: { low: 1, likely: Number.NaN, high: Number.NaN } },
    'memory outside the allocator has no upper bound',
  ],
])('nothing is proven where %s', (_what, change, reason) => {
  const { verdict, reasons } = judge([{ ...ROLE, ...change }], []);
  expect(verdict).toBe('unproven');
  expect(reasons.join()).toContain(reason);
});

test('a role that could not be traced leaves the job unproven', () => {
  expect(judge([ROLE], ['rank 8: killed']).verdict).toBe('unproven');
  expect(judge([], [])).toMatchObject({ verdict: 'unproven', reasons: ['nothing was traced'] });
});

test('assumptions are listed and do not prevent a proof', () => {
  const { verdict, assumptions } = judge([{ ...ROLE, assumptions: ['routing: balanced'] }], []);
  expect(verdict).toBe('fits');
  expect(assumptions).toEqual(['routing: balanced']);
});

test('the worst role is the one with the largest resident', () => {
  const large = { ...OTHER, residentPeak: { low: 20, likely: 21, high: 22 } };
  expect(judge([ROLE, large], []).worst?.role.label).toBe('pp=1');
});
