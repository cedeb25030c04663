import { expect, test } from 'vitest';
import { findRelease, NCCL_RELEASES } from './release.ts';

test('a version in any spelling finds its table', () => {
  for (const text of ['2.27.5', 'v2.27.5-1', '2.27', '2.27.5+cuda12.9']) {
    expect(findRelease(text).release.tag).toBe('v2.27.5-1');
    expect(findRelease(text).note).toBeUndefined();
  }
});

test('a version without a table gets the nearest older one, and says so', () => {
  expect(findRelease('2.27.7').note).toMatch(
    /2\.27\.7 has no table of its own; the one of 2\.27\.5/,
  );
  const newer = findRelease('2.31.0');
  expect(newer.release.version).toBe('2.30.7');
  expect(newer.note).toContain('2.31.0');
});

test('what is no version, or too old, is an error that lists the known ones', () => {
  expect(() => findRelease('latest')).toThrow(
    /is not an NCCL version. Known: 2\.19\.3, .*2\.30\.7/,
  );
  expect(() => findRelease('2.18.6')).toThrow(/older than every known version/);
});

test('one table for each minor release from 2.19 to 2.30', () => {
  const minors = NCCL_RELEASES.map(({ version }) => Number(version.split('.')[1]));
  expect(minors).toEqual([19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
});
