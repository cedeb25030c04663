// An estimate that was exported as a CUDA snapshot comes back as a measured run: same peaks, same phases, no gap. And where another job
// differs, the comparison says where, with the stacks of both sides.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { type Analysis, analyzeTrace } from '../../src/attribution/analysis.ts';
import { compareWithMeasurement } from '../../src/compare/gap.ts';
import { analyzeFile } from '../../src/measured/analysis.ts';
import { memoryViz } from '../../src/report/formats/memory_viz.ts';
import { gapSections } from '../../src/report/gap_sections.ts';
import { textOf } from '../../src/report/text.ts';
import { alloc, begin, cuda, end, free, traceOf } from '../traces/event_list.ts';
import { SMALL_JOB, syntheticTrace } from '../traces/synthetic.ts';

const folder = mkdtempSync(join(tmpdir(), 'memtracker-round-trip-'));
afterAll(() => rmSync(folder, { recursive: true }));

async function asSnapshot(estimate: Analysis, name: string): Promise<Analysis> {
  const parts: Uint8Array[] = [];
  for (const part of memoryViz.write(estimate, estimate.devices[0], {
    at: 'allocated',
    table: 'tensors',
  })) {
    parts.push(typeof part === 'string' ? Buffer.from(part) : part);
  }
  const path = join(folder, name);
  writeFileSync(path, Buffer.concat(parts));
  return analyzeFile(path);
}

const estimate = analyzeTrace(syntheticTrace(), { gpu: 'h100-80gb' });

test('an exported estimate meets itself in every phase', async () => {
  const measured = await asSnapshot(estimate, 'same.pickle');
  const { run, phases, firstParting } = compareWithMeasurement(estimate, measured);
  for (const kind of ['requested', 'allocated', 'active', 'reserved'] as const) {
    expect([kind, run.peaks[kind].gap]).toEqual([kind, 0]);
  }
  expect(run.peaks.resident.measured).toBeNaN();
  expect(phases.length).toBe(estimate.devices[0].timeline.phases.length);
  for (const { path, coverage, peaks } of phases) {
    expect([path, coverage, peaks?.allocated.gap]).toEqual([path, 'scored', 0]);
  }
  expect(firstParting).toBeNull();
});

test('phases meet by labels of every type, and by what stands in a text', async () => {
  const labels = {
    step: 1,
    chunk: -1,
    ratio: 0.5,
    final: true,
    split: 'train,val [a=b]',
    none: null,
  };
  const trace = traceOf([
    cuda(),
    begin(1, 'evaluation', labels),
    alloc(1, 2 ** 21),
    free(1),
    end(1),
  ]);
  const labelled = analyzeTrace(trace, { gpu: 'h100-80gb' });
  const { phases } = compareWithMeasurement(labelled, await asSnapshot(labelled, 'labels.pickle'));
  expect(phases.map(({ coverage }) => coverage)).toEqual(['scored']);
});

test('a snapshot is exported for memory_viz as it is', async () => {
  const measured = await asSnapshot(estimate, 'own.pickle');
  const parts: Uint8Array[] = [];
  if (measured.measured === undefined) throw new Error('a snapshot is a measured run');
  for await (const part of memoryViz.recorded?.(measured.measured) ?? []) parts.push(part);
  expect(Buffer.concat(parts).equals(readFileSync(join(folder, 'own.pickle')))).toBe(true);
});

test('where two jobs part is told by the innermost phase, with stacks', async () => {
  const larger = analyzeTrace(syntheticTrace({ ...SMALL_JOB, savedMiB: 24 }), { gpu: 'h100-80gb' });
  const measured = await asSnapshot(larger, 'larger.pickle');
  const comparison = compareWithMeasurement(estimate, measured);
  const { firstParting } = comparison;
  expect(firstParting?.phase.path).toMatch(/step=1\].*micro_batch=0/);
  expect(firstParting?.phase.peaks?.allocated.gap).toBeLessThan(0);
  const [site] = firstParting?.sites ?? [];
  expect(site.gap.gap).toBeLessThan(0);
  expect(site.estimateStack.length).toBeGreaterThan(0);
  expect(site.measuredStack.length).toBeGreaterThan(0);
  expect(textOf(gapSections(comparison))).toContain('They part first in');
});

test('the estimate comes first and the measurement second', async () => {
  const measured = await asSnapshot(estimate, 'order.pickle');
  expect(() => compareWithMeasurement(measured, estimate)).toThrow('give the estimate first');
});
