import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { syntheticTrace } from '../../tests/traces/synthetic.ts';
import { analyzeTrace } from '../attribution/analysis.ts';
import { MiB } from '../base/bytes.ts';
import { reportDocument } from './document.ts';
import { reportDocumentSchema } from './document_schema.ts';
import { reportJsonSchema } from './json_schema.ts';

const LAYERS = 4;
const document = reportDocument(analyzeTrace(syntheticTrace({ layers: LAYERS })));
const device = document.devices['cuda:0'];

test('the document is as its schema says', () => {
  expect(reportDocumentSchema.parse(structuredClone(document))).toEqual(document);
});

test('the published JSON schema is the one in docs', () => {
  const published = readFileSync(new URL('../../docs/report.schema.json', import.meta.url), 'utf8');
  expect(`${JSON.stringify(reportJsonSchema(), null, 2)}\n`, 'npm run generate').toBe(published);
});

test('the peak stands in the second step, in the backward of the last micro-batch', () => {
  // By hand from the job: 4 shards of 8, 8 optimizer states of 8, 4 gradients of 8, saved 4 x 48, the input 1,
  // one gathered layer of 64 and one whole gradient of 64 (MiB).
  expect(device.peak.requested).toMatchObject({
    bytes: (32 + 64 + 32 + 192 + 1 + 64 + 64) * MiB,
    phase: 'step[step=2]/forward_backward[micro_batch=1]/backward',
    step: 2,
  });
});

test('owners of the peak add up to what is allocated', () => {
  const { owners, allocated, not_in_trace } = device.at_peak;
  expect(owners.reduce((sum, owner) => sum + owner.bytes, not_in_trace)).toBe(allocated);
  expect(Object.fromEntries(owners.map((owner) => [owner.owner, owner.bytes / MiB]))).toEqual({
    activation: 192,
    gradient: 96,
    optimizer_state: 64,
    unsharded_parameter: 64,
    parameter: 32,
    input: 1,
  });
});

test('modules are given one by one and with their repetitions together', () => {
  const own = (modules: typeof device.at_peak.modules, name: string) =>
    modules.find((module) => module.name === name);
  expect(own(device.at_peak.modules, 'layers.2.attention')?.own.bytes).toBe(16 * MiB);
  const repeated = own(device.at_peak.repeated_modules, 'layers.*.attention');
  expect(repeated).toMatchObject({ count: LAYERS, own: { bytes: 64 * MiB, blocks: LAYERS } });
  expect(repeated?.by_pass).toMatchObject({ forward: 64 * MiB, backward: 0 });
  const layer = own(device.at_peak.repeated_modules, 'layers.*');
  // A shard a layer is its own; attention, feed-forward and what their backward made are inside.
  expect(layer?.own.bytes).toBe(32 * MiB);
  expect(layer?.with_children.bytes).toBe((32 + 192 + 32 + 64) * MiB);
});

test('memory that is not known is null and not zero', () => {
  const unknown = { bytes: null, phase: null, step: null, event: null };
  if (device.evidence.external === 'unknown') expect(device.peak.external).toEqual(unknown);
});

test('the metrics of a step have the names of Megatron and TorchTitan', () => {
  expect(device.metrics.map((row) => row.step)).toEqual([1, 2]);
  expect(device.metrics[1]['mem-max-allocated-bytes']).toBe(device.peak.allocated.bytes);
  // After both steps: shards and optimizer state.
  expect(device.metrics[1]['mem-allocated-bytes']).toBe(96 * MiB);
});

test('a job that keeps a tensor every step is found out, with its place', () => {
  const leaking = reportDocument(analyzeTrace(syntheticTrace({ steps: 3, leakMiB: 5 })));
  expect(leaking.devices['cuda:0'].growth).toMatchObject([
    {
      per: 'step',
      bytes_each: 5 * MiB,
      repetitions: 2,
      operator: 'aten.stack',
      frames: [{ file: 'metrics.py', line: 12, function: 'append' }, { file: 'train.py' }],
    },
  ]);
});

test('a job without a leak grows nowhere', () => {
  const steady = reportDocument(analyzeTrace(syntheticTrace({ steps: 3, microBatches: 4 })));
  expect(steady.devices['cuda:0'].growth).toEqual([]);
});

test('wrapped modules have the names of the unwrapped model', () => {
  const wrapped = reportDocument(analyzeTrace(syntheticTrace({ wrapped: true })));
  expect(wrapped.devices['cuda:0'].at_peak.modules).toEqual(device.at_peak.modules);
});

test('a job that does not fit says where it ends and what it would need', () => {
  const capacity = String(300 * MiB);
  const small = reportDocument(analyzeTrace(syntheticTrace(), { gpu: capacity }));
  const { out_of_memory, peak } = small.devices['cuda:0'];
  expect(out_of_memory).toMatchObject({ step: 1, kind: 'allocator' });
  expect(peak.allocated).toEqual(device.peak.allocated);
});

test('the need of a job that does not fit is known with expandable segments, too', () => {
  const options = { gpu: String(300 * MiB), allocConf: 'expandable_segments:True' };
  const small = reportDocument(analyzeTrace(syntheticTrace(), options)).devices['cuda:0'];
  expect(small.out_of_memory).toMatchObject({ step: 1, kind: 'allocator' });
  expect(small.peak.reserved.bytes).toBeGreaterThanOrEqual(device.peak.allocated.bytes ?? 0);
});
