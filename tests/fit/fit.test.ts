// `memtracker fit` as a user runs it, on a job whose memory is known: G GiB of input and as much of output.

import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { memtracker } from '../cli/memtracker.ts';
import { RAY, rayProblem, startRay } from './ray_cluster.ts';
import { slurmProblem, startSlurm } from './slurm_cluster.ts';

const SCRIPT = fileURLToPath(new URL('train_tiny.py', import.meta.url));

interface FitJson {
  readonly verdict: string;
  readonly variations: readonly {
    readonly label: string;
    readonly verdict: string;
    readonly reasons: readonly string[];
    readonly capacity_bytes: number;
    readonly roles: readonly { readonly out_of_memory: { readonly phase: string } | null }[];
  }[];
  readonly search: { readonly best: number | null; readonly probes: readonly unknown[] } | null;
  readonly suggestions: readonly { readonly title: string; readonly verdict: string }[];
  readonly traced: number;
}

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'memtracker-fit-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function runFit(words: readonly string[], env: Readonly<Record<string, string>> = {}) {
  const result = await memtracker(['fit', '--json', '--quiet', ...words], {
    cwd: folder,
    env: { MEMTRACKER_CACHE: join(folder, 'cache'), ...env },
  });
  return { ...result, json: JSON.parse(result.stdout || 'null') as FitJson };
}

const TIMEOUT = 300_000;

test('a matrix: each variation has its verdict, and asking again traces nothing', {
  timeout: TIMEOUT,
}, async () => {
  await writeFile(
    join(folder, 'job.yaml'),
    [
      'framework: script',
      `arguments: ${SCRIPT} --gib 1`,
      'world: 1',
      'ranks: [0]',
      'matrix:',
      '  gpu: [h100-80gb, h200-141gb]',
      '  --gib: [10, 60]',
    ].join('\n'),
  );
  const first = await runFit(['job.yaml', '--junit', 'fit.xml']);
  // Input and output of the linear layer: 20 and 120 GiB; an H100 has 79, an H200 has 139.
  expect(first.json.variations.map(({ label, verdict }) => [label, verdict])).toEqual([
    ['gpu=h100-80gb, --gib=10', 'fits'],
    ['gpu=h100-80gb, --gib=60', 'does_not_fit'],
    ['gpu=h200-141gb, --gib=10', 'fits'],
    ['gpu=h200-141gb, --gib=60', 'fits'],
  ]);
  expect(first.exitCode).toBe(1);
  // One trace a job: both GPUs run the same kernels.
  expect(first.json.traced).toBe(2);
  expect(first.json.variations[1]?.roles[0]?.out_of_memory?.phase).toContain('forward');
  expect(first.json.variations[1]?.reasons[0]).toContain(
    'CUDA out of memory. Tried to allocate 60.00 GiB',
  );
  const again = await runFit(['job.yaml']);
  expect(again.json.traced).toBe(0);
  expect(again.json.variations).toEqual(first.json.variations);
});

test('maximize finds the largest value, its neighbour above does not fit', {
  timeout: TIMEOUT,
}, async () => {
  const { json, exitCode } = await runFit([
    ...['--framework', 'script', '--world', '1', '--ranks', '0', '--gpu', 'h100-80gb'],
    ...['--maximize', '--gib:30..45', '--', SCRIPT],
  ]);
  // Input and output: 2 x 39 GiB leave 1.18 GiB of an H100's 79.18 for context and workspaces, 2 x 40 are more than it has.
  expect(json.search?.best).toBe(39);
  expect(json.search?.probes).toContainEqual({ value: 40, verdict: 'does_not_fit' });
  expect(json.search?.probes.length).toBeLessThanOrEqual(5);
  expect(exitCode).toBe(0);
});

test('a failing and a dying variation are unproven, the others are unharmed', {
  timeout: TIMEOUT,
}, async () => {
  const { json, exitCode } = await runFit([
    ...['--framework', 'script', '--world', '1', '--ranks', '0'],
    ...['--vary', '--fail=false,true', '--vary', '--die=false,true', '--', SCRIPT],
  ]);
  expect(json.variations.map(({ verdict }) => verdict)).toEqual([
    'fits',
    'unproven',
    'unproven',
    'unproven',
  ]);
  expect(json.variations[2]?.reasons.join()).toContain('the data set is broken');
  expect(json.variations[1]?.reasons.join()).toContain('SIGKILL');
  expect(exitCode).toBe(2);
});

/** What two executors must agree on. */
function table({ json }: Awaited<ReturnType<typeof runFit>>) {
  return json.variations.map(({ label, verdict, reasons }) => ({ label, verdict, reasons }));
}

const TWO_SIZES = [
  ...['--framework', 'script', '--world', '1', '--ranks', '0'],
  ...['--vary', '--gib=2,50', '--', SCRIPT],
];

const noSlurm = slurmProblem();
if (noSlurm !== undefined) console.warn(`SKIPPED: fit on Slurm: ${noSlurm}`);

test.skipIf(noSlurm !== undefined)(
  'Slurm gives the same table as this machine',
  { timeout: TIMEOUT },
  async () => {
    const local = await runFit(TWO_SIZES, { MEMTRACKER_CACHE: join(folder, 'local') });
    const cluster = await startSlurm();
    try {
      const env = { ...cluster.env, MEMTRACKER_CACHE: join(folder, 'slurm') };
      const slurm = await runFit(['--executor', 'slurm', ...TWO_SIZES], env);
      expect(slurm.json.traced).toBe(2);
      expect(table(slurm)).toEqual(table(local));
      expect(slurm.exitCode).toBe(1);
    } finally {
      await cluster.stop();
    }
  },
);

const noRay = await rayProblem();
if (noRay !== undefined) console.warn(`SKIPPED: fit on Ray: ${noRay}`);

test.skipIf(noRay !== undefined)(
  'Ray gives the same table as this machine',
  { timeout: TIMEOUT },
  async () => {
    const local = await runFit(TWO_SIZES, { MEMTRACKER_CACHE: join(folder, 'local') });
    const cluster = await startRay();
    try {
      const ray = await runFit(
        ['--executor', 'ray', '--ray', RAY, '--ray-address', cluster.address, ...TWO_SIZES],
        { MEMTRACKER_CACHE: join(folder, 'ray') },
      );
      expect(ray.json.traced).toBe(2);
      expect(table(ray)).toEqual(table(local));
      expect(ray.exitCode).toBe(1);
    } finally {
      await cluster.stop();
    }
  },
);
