// The model against the real CUDACachingAllocator of torch 2.14.1, step by step. Every expected value comes out of
// libc10_cuda.so. MEMTRACKER_PYTHON names a Python with the CUDA build of torch 2.14.1; no GPU is needed.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { compare, generateTraces, judge, whyNoJudge } from './judge.ts';

const RANDOM_TRACES = 300;
const STEPS = 200;
const FIRST_SEED = 900_000;

const reason = whyNoJudge();
if (reason !== null) {
  console.warn(`\nSKIPPED: the allocator is not compared with the real one: ${reason}\n`);
}

describe.skipIf(reason !== null)('the real allocator of torch 2.14.1 agrees', () => {
  const kept = join(import.meta.dirname, 'traces');
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-oracle-'));
  const judged = join(folder, 'judged');
  let random: string[] = [];

  beforeAll(() => {
    generateTraces(join(folder, 'random'), FIRST_SEED, RANDOM_TRACES, STEPS);
    random = readdirSync(join(folder, 'random')).map((name) => join(folder, 'random', name));
    judge([...random, ...keptTraces()], judged);
  }, 1_200_000);

  afterAll(() => rmSync(folder, { recursive: true }));

  function keptTraces(): string[] {
    return readdirSync(kept).map((name) => join(kept, name));
  }

  test(`on every step of ${RANDOM_TRACES} random traces`, async () => {
    for (const trace of random) {
      const verdict = await compare(trace, join(judged, basename(trace)));
      expect(verdict.difference, `${basename(trace)}, step ${verdict.steps}`).toBeNull();
      expect(verdict.undefinedAt, basename(trace)).toBeNull();
      expect(verdict.steps).toBe(verdict.judged);
    }
  }, 1_200_000);

  for (const trace of keptTraces()) {
    const name = basename(trace, '.jsonl');
    if (name.startsWith('undefined_')) {
      test(`on ${name} up to where the model says that PyTorch is undefined`, async () => {
        const verdict = await compare(trace, join(judged, basename(trace)));
        expect(verdict.difference, `step ${verdict.steps}`).toBeNull();
        expect(verdict.undefinedAt).not.toBeNull();
      });
    } else {
      test(`on every step of ${name}`, async () => {
        const verdict = await compare(trace, join(judged, basename(trace)));
        expect(verdict.difference, `step ${verdict.steps}`).toBeNull();
        expect(verdict.undefinedAt).toBeNull();
        expect(verdict.steps).toBe(verdict.judged);
      });
    }
  }
});
