import { expect, test } from 'vitest';
import { syntheticTrace } from '../../tests/traces/synthetic.ts';
import { analyzeTrace } from '../attribution/analysis.ts';
import { phaseTitle } from '../attribution/phase_title.ts';
import { MiB } from '../base/bytes.ts';
import { compareRuns } from './comparison.ts';
import { exceeds, parseThreshold } from './threshold.ts';

const base = () => analyzeTrace(syntheticTrace());

test('a run compared with itself differs nowhere', () => {
  const [device] = compareRuns(base(), base()).devices;
  expect(device.peaks.allocated.delta).toBe(0);
  expect(device.causes).toEqual({ owners: [], modules: [], operators: [], callSites: [] });
  expect(device.phases.every(({ a, b }) => a !== null && b !== null)).toBe(true);
});

test('larger saved activations are named as the cause, by owner, module and call site', () => {
  // 3 saved tensors' worth a layer (one of attention, two of feed-forward), 4 layers, 2 MiB more each.
  const more = analyzeTrace(syntheticTrace({ savedMiB: 18 }));
  const [device] = compareRuns(base(), more).devices;
  expect(device.peaks.allocated.delta).toBe(24 * MiB);
  expect(device.causes.owners).toMatchObject([{ name: 'activation', delta: 24 * MiB }]);
  expect(device.causes.modules).toMatchObject([
    { name: 'layers.*.feed_forward', delta: 16 * MiB },
    { name: 'layers.*.attention', delta: 8 * MiB },
  ]);
  expect(device.causes.callSites[0].name).toBe('aten.mm  model.py forward');
});

test('phases that only one run has stay visible, in their place', () => {
  const longer = analyzeTrace(syntheticTrace({ microBatches: 3 }));
  const [device] = compareRuns(base(), longer).devices;
  const only = device.phases.filter(({ a }) => a === null).map(({ b }) => phaseTitle(b?.phase));
  expect(only).toEqual([
    'step[step=1]/forward_backward[micro_batch=2]',
    'step[step=1]/forward_backward[micro_batch=2]/forward',
    'step[step=1]/forward_backward[micro_batch=2]/backward',
    'step[step=2]/forward_backward[micro_batch=2]',
    'step[step=2]/forward_backward[micro_batch=2]/forward',
    'step[step=2]/forward_backward[micro_batch=2]/backward',
  ]);
  expect(device.phases.findIndex(({ a }) => a === null)).toBe(8);
});

test('a threshold is a size or a share, and is passed only by growth', () => {
  expect(exceeds(parseThreshold('1GiB'), 10, 10 + 1024 ** 3)).toBe(false);
  expect(exceeds(parseThreshold('1GiB'), 10, 11 + 1024 ** 3)).toBe(true);
  expect(exceeds(parseThreshold('2 %'), 100, 102)).toBe(false);
  expect(exceeds(parseThreshold('2%'), 100, 103)).toBe(true);
  expect(exceeds(parseThreshold('0%'), 100, 50)).toBe(false);
  expect(exceeds(parseThreshold('0%'), Number.NaN, Number.NaN)).toBe(false);
  expect(() => parseThreshold('much')).toThrow('"much" is not a threshold');
});
