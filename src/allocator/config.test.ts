// Which texts PyTorch 2.14.1 takes, and what it makes of them, is compared with PyTorch itself in tests/oracle/config.test.ts.

import { expect, test } from 'vitest';
import { UserError } from '../base/errors.ts';
import { allocatorConfKeys, explainAllocatorConf, parseAllocatorConf } from './config.ts';

function problem(conf: string): string {
  try {
    parseAllocatorConf(conf);
  } catch (error) {
    expect(error).toBeInstanceOf(UserError);
    return (error as Error).message;
  }
  throw new Error(`"${conf}" was taken`);
}

test('an unknown key is named, with the keys there are', () => {
  expect(problem('expandable_segment:True')).toBe(
    'PYTORCH_ALLOC_CONF: "expandable_segment" is not a key of PyTorch 2.14.1; it knows ' +
      allocatorConfKeys()
        .map(({ key }) => key)
        .join(', '),
  );
});

test('a bad value is named with its key and what is allowed', () => {
  expect(problem('expandable_segments:true')).toBe(
    'PYTORCH_ALLOC_CONF: expandable_segments: the value "true" is not allowed; give True or False',
  );
  expect(problem('garbage_collection_threshold:1.0')).toContain('a number above 0 and below 1');
  expect(problem('max_split_size_mb:19')).toContain('at least the large segment size');
  expect(problem('roundup_power2_divisions:[256:3]')).toContain('"[256:3]" is not allowed');
});

test('a number with something after it is no number, though PyTorch reads it so', () => {
  expect(problem('max_split_size_mb:128MB')).toContain('"128MB"');
  expect(problem('max_split_size_mb:-1')).toContain('"-1"');
});

test('another backend is refused with the reason', () => {
  expect(problem('backend:cudaMallocAsync')).toContain('which is not modelled');
});

test('a list that is not closed, a key without a value, a missing comma', () => {
  expect(problem('roundup_power2_divisions:[256:1')).toContain('the end');
  expect(problem('expandable_segments')).toContain('expected ":" after "expandable_segments"');
  expect(problem('expandable_segments:')).toContain('a value for expandable_segments');
  expect(problem('expandable_segments:True max_split_size_mb:64')).toContain('expected "," after');
});

test('every key is explained in the order in which it was given', () => {
  const text = 'max_split_size_mb:128, expandable_segments:True, pinned_free_catch_all:False';
  const explanations = explainAllocatorConf(text);
  expect(explanations.map(({ key }) => key)).toEqual([
    'max_split_size_mb',
    'expandable_segments',
    'pinned_free_catch_all',
  ]);
  for (const { explanation } of explanations) expect(explanation).toMatch(/\.$/);
});
