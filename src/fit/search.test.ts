import fc from 'fast-check';
import { expect, test } from 'vitest';
import { maximize, minimize } from './search.ts';

const upTo = (limit: number) => async (value: number) =>
  value <= limit ? ('fits' as const) : ('does_not_fit' as const);

test('maximize finds the largest that fits in at most ceil(log2) + 1 probes, its upper neighbour probed', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 300 }),
      fc.integer({ min: 0, max: 320 }),
      async (to, limit) => {
        const { best, probes } = await maximize({ from: 1, to }, upTo(limit));
        expect(best).toBe(limit === 0 ? null : Math.min(limit, to));
        expect(probes.length).toBeLessThanOrEqual(Math.ceil(Math.log2(to)) + 1);
        if (best !== null && best < to) {
          expect(probes).toContainEqual({ value: best + 1, verdict: 'does_not_fit' });
        }
      },
    ),
  );
});

test('minimize finds the smallest that fits', async () => {
  const atLeast = async (value: number) => (value >= 5 ? ('fits' as const) : ('unproven' as const));
  expect((await minimize({ from: 1, to: 64 }, atLeast)).best).toBe(5);
  expect((await minimize({ from: 1, to: 4 }, atLeast)).best).toBeNull();
});

test('a range that holds nothing is refused with what to write', async () => {
  await expect(maximize({ from: 9, to: 3 }, upTo(1))).rejects.toThrow(
    'nothing to search between 9 and 3 in steps of 1; write KEY:FROM..TO with FROM below TO',
  );
  await expect(minimize({ from: 1, to: 3, step: 0 }, upTo(1))).rejects.toThrow('in steps of 0');
});
