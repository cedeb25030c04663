import { expect, test } from 'vitest';
import { MiB } from '../base/bytes.ts';
import { parseComponents, refuseDoubleCounting } from './component.ts';
import { ExternalMemory, exactFigure } from './external_memory.ts';

const GB200 = {
  name: 'gb200-186gb',
  capability: [10, 0] as const,
  multiprocessors: 152,
  threadsPerMultiprocessor: 2048,
};

function memory(components: unknown[] = [], context = false) {
  return new ExternalMemory({
    gpu: GB200,
    ncclVersion: '2.30.7',
    context,
    nccl: true,
    components: parseComponents(components, 'test'),
  });
}

test("NCCL's code is loaded once, its stacks grow to the largest kernel and never shrink", () => {
  const external = memory();
  external.loadNccl();
  external.loadNccl();
  expect(external.bytes.likely / MiB).toBe(172);
  external.launchNccl('collective');
  // 176 MiB measured at the first all-reduce (elfiegg/memTracker, experiments/gb200_calibration.json).
  expect(external.bytes.likely / MiB).toBe(172 + 176);
  external.launchNccl('point_to_point');
  const most = external.bytes.likely;
  expect(most / MiB).toBeGreaterThan(172 + 176);
  external.launchNccl('collective');
  expect(external.bytes.likely).toBe(most);
});

test('every step can be taken back', () => {
  const external = memory();
  const loaded = external.loadNccl();
  const launched = external.launchNccl('collective');
  launched.undo();
  loaded.undo();
  expect(external.bytes.likely).toBe(0);
  expect(external.breakdown()).toEqual([]);
  external.launchNccl('collective');
  expect(external.bytes.likely / MiB).toBe(176);
});

test('components live the whole run or while a phase of their name is open', () => {
  const stated = {
    category: 'library',
    evidence: 'assumed',
    provenance: 'a person',
  };
  const external = memory([
    { ...stated, name: 'always', bytes: '1MiB', lifetime: 'persistent' },
    {
      ...stated,
      name: 'at save',
      bytes: { low: '1MiB', likely: '2MiB', high: '3MiB' },
      lifetime: { phase: 'checkpoint' },
    },
  ]);
  expect(external.bytes.likely).toBe(1 * MiB);
  external.beginPhase('optimizer');
  expect(external.bytes.likely).toBe(1 * MiB);
  external.beginPhase('checkpoint');
  expect(external.bytes).toEqual({ low: 2 * MiB, likely: 3 * MiB, high: 4 * MiB });
  external.endPhase('checkpoint');
  expect(external.bytes.likely).toBe(1 * MiB);
});

test('an unknown size makes the total unknown until it is gone', () => {
  const external = memory();
  external.add('x', exactFigure('x', 'other', 0, 'unknown', 'nobody measured it'));
  expect(external.isKnown).toBe(false);
  external.remove('x');
  expect(external.isKnown).toBe(true);
});

test.each([
  [{ bytes: -1 }, /bytes/],
  [{ bytes: '3 parsecs' }, /is not a size/],
  [{ bytes: { low: 3, likely: 2, high: 4 } }, /does not hold/],
  [{ category: 'residual' }, /must say what it includes/],
  [{ extra: 1 }, /extra/],
])('a component with %j is refused', (change, message) => {
  const good = {
    name: 'x',
    category: 'other',
    bytes: 1,
    lifetime: 'persistent',
    evidence: 'assumed',
    provenance: 'test',
  };
  expect(parseComponents([good], 'file')).toHaveLength(1);
  expect(() => parseComponents([{ ...good, ...change }], 'file')).toThrow(message);
});

test('a residual and a component of what it includes are refused', () => {
  const residual = {
    name: 'measured',
    category: 'residual',
    includes: ['library'],
    bytes: 1,
    lifetime: 'persistent',
    evidence: 'calibrated',
    provenance: 'test',
  };
  const library = { ...residual, name: 'cuDNN', category: 'library', includes: undefined };
  const components = parseComponents([residual, library], 'file');
  expect(() => refuseDoubleCounting(components, [])).toThrow(/"cuDNN" would be counted twice/);
  expect(() => refuseDoubleCounting(components.slice(0, 1), ['nccl'])).not.toThrow();
});
