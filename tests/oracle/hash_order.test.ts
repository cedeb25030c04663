// The order in which our hash table is walked, beside ska::flat_hash_map compiled from PyTorch's own header.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { FlatHashMap } from '../../src/allocator/flat_hash_map.ts';
import { pythonOfJudge, whyNoJudge } from './judge.ts';

const reason = whyNoJudge();
if (reason !== null)
  console.warn(`\nSKIPPED: the order of hash tables is not compared: ${reason}\n`);

interface Change {
  readonly key: number;
  readonly add: boolean;
}

// Keys that differ little, as streams and pool numbers do, and keys that differ much.
const key = fc.oneof(
  fc.integer({ min: 0, max: 40 }),
  fc.integer({ min: 0, max: 200 }).map((stream) => stream * 0x1000),
  fc.maxSafeNat(),
);
const changes = fc.array(fc.record({ key, add: fc.boolean() }), { minLength: 20, maxLength: 400 });

describe.skipIf(reason !== null)("the order of PyTorch's hash tables", () => {
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-hash-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  test('after every insertion and removal', () => {
    const program = compile(folder);
    const runs = fc.sample(changes, { numRuns: 60, seed: 1 });
    for (const run of runs) {
      const input = run.map(({ add, key }) => `${add ? '+' : '-'} ${key}\n`).join('');
      const done = spawnSync(program, { input, encoding: 'utf8' });
      expect(done.status, done.stderr).toBe(0);
      const expected = done.stdout.split('\n').slice(0, run.length);
      expect(ordersOf(run)).toEqual(expected.map((line) => line.trim()));
    }
  }, 600_000);
});

function ordersOf(run: readonly Change[]): string[] {
  const table = new FlatHashMap<number, number>((key) => BigInt(key));
  return run.map(({ key, add }) => {
    if (!add) table.delete(key);
    else if (table.get(key) === undefined) table.add(key, key);
    return [...table.values()].join(' ');
  });
}

function compile(folder: string): string {
  const program = join(folder, 'hash_order');
  const torch = spawnSync(
    pythonOfJudge(),
    ['-c', 'import torch, os; print(os.path.dirname(torch.__file__))'],
    { encoding: 'utf8' },
  );
  const source = join(import.meta.dirname, 'hash_order.cpp');
  const include = `-I${join(torch.stdout.trim(), 'include')}`;
  const done = spawnSync('g++', ['-std=c++20', '-O1', include, source, '-o', program], {
    encoding: 'utf8',
  });
  expect(done.status, done.stderr).toBe(0);
  return program;
}
