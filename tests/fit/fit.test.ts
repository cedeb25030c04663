// `memtracker fit` as a user runs it, on a job whose memory is known: G GiB of input and as much of output.

import { mkdtemp, readdir, rm, stat, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
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

test.each([
  [['--nccl', '1.0'], '1.0'],
  [['--topology', 'nowhere'], 'nowhere'],
  [['--alloc-conf', 'expandable:True'], 'expandable'],
  [['--gpu', 'h1000'], 'h1000'],
])('%j is refused before anything is set up or traced', async (words, says) => {
  // An environment that is not there would be the next thing to be refused.
  const env = { MEMTRACKER_PYTHON: '/nonexistent/python' };
  const job = ['--framework', 'script', '--world', '1', '--ranks', '0'];
  const { exitCode, stderr } = await runFit([...job, ...words, '--', SCRIPT], env);
  expect(exitCode, stderr).toBe(3);
  expect(stderr).toContain(says);
  expect(stderr).not.toContain('MEMTRACKER_PYTHON');
});

test('a damaged trace in the cache is named and made again', { timeout: TIMEOUT }, async () => {
  const kept = join(folder, 'damaged');
  const job = ['--framework', 'script', '--world', '1', '--ranks', '0', '--vary', '--gib=2,3'];
  const words = ['fit', '--json', ...job, '--', SCRIPT];
  const ask = () => memtracker(words, { cwd: folder, env: { MEMTRACKER_CACHE: kept } });
  const first = await ask();
  expect(first.exitCode, first.stderr).toBe(0);
  const [noTrace, cut] = (await readdir(join(kept, 'traces'))).filter((name) =>
    name.endsWith('.mtrace'),
  );
  await writeFile(join(kept, 'traces', noTrace), 'nonsense');
  const { size } = await stat(join(kept, 'traces', cut));
  await truncate(join(kept, 'traces', cut), size - 100);
  const again = await ask();
  expect(again.exitCode, again.stderr).toBe(0);
  expect(
    again.stderr.match(/the kept trace of .* is damaged \(.*\); it is traced again/g),
  ).toHaveLength(2);
  const [before, after] = [first, again].map(({ stdout }) => JSON.parse(stdout) as FitJson);
  expect(after.variations).toEqual(before.variations);
  expect(after.traced).toBe(2);
  expect((JSON.parse((await ask()).stdout) as FitJson).traced).toBe(0);
});

test('a full disk leaves a variation unproven, says what to do and leaves nothing half-made', {
  timeout: TIMEOUT,
}, async (context) => {
  const disk = await mkdtemp(join(folder, 'disk-'));
  const mounted = await execa('mount', ['-t', 'tmpfs', '-o', 'size=4k', 'tmpfs', disk], {
    reject: false,
  });
  if (mounted.exitCode !== 0) context.skip('a tmpfs cannot be mounted here (not root)');
  try {
    const job = ['--framework', 'script', '--world', '1', '--ranks', '0', '--', SCRIPT];
    const { exitCode, json } = await runFit(job, { MEMTRACKER_CACHE: disk });
    expect(exitCode).toBe(2);
    expect(json.verdict).toBe('unproven');
    expect(json.variations[0]?.reasons.join()).toContain(
      `the disk is full where traces are kept (${join(disk, 'traces')}); free some space (memtracker cache prune), or set MEMTRACKER_CACHE`,
    );
    expect(await readdir(join(disk, 'traces'))).toEqual([]);
  } finally {
    await execa('umount', [disk]);
  }
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
