// `memtracker capture`, `calibrate`, `report` and `compare` as a user starts them, over the real torch 2.14.1 with its real allocator;
// only the driver under it is fake (tests/oracle). MEMTRACKER_PYTHON names a Python with that torch.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { MiB } from '../../src/base/bytes.ts';
import type { CapturedRun } from '../../src/measured/capture/capture_run.ts';
import { readMeasuredRun } from '../../src/measured/formats.ts';
import { memtracker } from '../cli/memtracker.ts';
import { pythonOfJudge, whyNoJudge } from '../oracle/judge.ts';

const reason = whyNoJudge();
if (reason !== null) {
  console.warn(`\nSKIPPED: capture is not tried on a real torch: ${reason}\n`);
}

const ROOT = resolve(import.meta.dirname, '../..');
const SCRIPT = join(import.meta.dirname, 'small_training.py');
const BUILD = join(ROOT, 'tests/oracle/build');
/** What the fake driver says is in use before anything is allocated. */
const CONTEXT = 500 * MiB;

describe.skipIf(reason !== null)('capture', { timeout: 300_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-capture-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  async function run(
    ...args: string[]
  ): Promise<{ status: number | undefined; out: string; error: string }> {
    const done = await memtracker(args, {
      cwd: folder,
      env: {
        XDG_CONFIG_HOME: join(folder, 'config'),
        FAKECUDA_BYTES: String(8192 * MiB),
        FAKECUDA_CTX_BYTES: String(CONTEXT),
        FAKECUDA_DEVICES: '2',
        TORCH_CPP_LOG_LEVEL: 'ERROR',
        OMP_NUM_THREADS: '1',
      },
    });
    return { status: done.exitCode, out: done.stdout, error: done.stderr };
  }

  const made = new Map<string, ReturnType<typeof run>>();

  /** Runs what several tests look at once, in whichever of them comes first. */
  function once(...args: string[]): ReturnType<typeof run> {
    const key = args.join(' ');
    const running = made.get(key) ?? run(...args);
    made.set(key, running);
    return running;
  }

  /** Traces the same script. */
  async function estimate(out: string, steps: string, world: string): Promise<void> {
    const gpu = ['--gpu', 'h200-141gb', '--steps', steps, '--world', world];
    const done = await once('trace', ...gpu, '--out', out, '--', SCRIPT);
    expect([done.status, done.error.includes('error:')]).toEqual([0, false]);
  }

  /** Only the job itself runs over the fake driver. */
  const overFake = [
    'env',
    `LD_PRELOAD=${join(BUILD, 'libfakecuda.so')}:${join(BUILD, 'libfakecublas.so')}`,
    `LD_LIBRARY_PATH=${join(BUILD, 'lib')}`,
  ];
  const python = reason === null ? resolvePython() : '';
  const torchrun = [join(dirname(python), 'torchrun'), '--nproc-per-node', '2'];
  const capture = (out: string, ...words: string[]) => [
    'capture',
    '--out',
    out,
    '--',
    ...overFake,
    ...words,
  ];
  const twoRanks = () => once(...capture('run', ...torchrun, SCRIPT));

  test('two ranks under torchrun, one file each, phases and owners of a trace', async () => {
    const done = await twoRanks();
    expect(done.error).toBe('');
    expect(done.status).toBe(0);
    expect(done.out).toBe('run/rank00000.mtcapture\nrun/rank00001.mtcapture');

    const rank = (await readMeasuredRun(join(folder, 'run/rank00001.mtcapture'))) as CapturedRun;
    expect(rank.capture).toMatchObject({
      rank: 1,
      world: 2,
      disturbed_by: [],
      framework: 'script',
    });
    expect(rank.trace.integrity.complete).toBe(true);
    const paths = rank.timeline.phases.map(({ phase }) => phase.path);
    expect(paths.slice(0, 7)).toEqual([
      'init',
      'step[step=1]',
      'step[step=1]/forward[micro_batch=0]',
      'step[step=1]/backward[micro_batch=0]',
      'step[step=1]/forward[micro_batch=1]',
      'step[step=1]/backward[micro_batch=1]',
      'step[step=1]/optimizer',
    ]);
    // The reading of the driver at each boundary is the fake context: whatever is reserved is taken off.
    for (const { after } of rank.timeline.phases) expect(after.external).toBe(CONTEXT);

    const report = await run('report', 'run/rank00001.mtcapture');
    expect(report.status).toBe(0);
    // 4096 x 1024 twice, with biases: 8,393,728 fp32 values, of which AdamW keeps two.
    expect(report.out).toMatch(/optimizer state +64\.04 MiB/);
    expect(report.out).toMatch(/parameters +32\.02 MiB/);
  });

  test('its snapshot is exported for memory_viz as torch wrote it', async () => {
    await twoRanks();
    const file = 'run/rank00000.mtcapture';
    const done = await run('export', file, '--format', 'memory_viz', '--out', 'own.pickle');
    expect([done.status, done.error]).toEqual([0, expect.stringContaining('own.pickle')]);
    const peak = async (path: string) => {
      const { out } = await run('report', path, '--json');
      return JSON.parse(out).devices['cuda:0'].peak.allocated.bytes;
    };
    expect(await peak('own.pickle')).toBe(await peak(file));
  });

  test('an estimate of the same script meets it in every phase, reserved included', async () => {
    await twoRanks();
    await estimate('estimate.mtrace', '3', '1');
    const done = await run('compare', 'estimate.mtrace', 'run/rank00000.mtcapture', '--json');
    expect(done.status).toBe(0);
    const { run: whole, phases, first_parting } = JSON.parse(done.out);
    for (const kind of ['requested', 'allocated', 'active', 'reserved']) {
      expect([kind, whole.peaks[kind].gap]).toEqual([kind, 0]);
    }
    expect(phases.length).toBe(19);
    for (const { path, coverage, peaks } of phases) {
      expect([path, coverage, peaks.allocated.gap]).toEqual([path, 'scored', 0]);
    }
    expect(first_parting).toBeNull();
  });

  test('a run out of memory is written, censored and not scored', async () => {
    const done = await run(...capture('oom', python, SCRIPT, 'oom'));
    expect(done.status).toBe(4);
    expect(done.error).toContain('the job ended with status 1');
    const full = (await readMeasuredRun(join(folder, 'oom/rank00000.mtcapture'))) as CapturedRun;
    expect(full.capture.ended.how).toBe('out_of_memory');
    expect(full.timeline.outOfMemory?.requestedBytes).toBe(2 ** 42);
    const censored = [...full.censored].map((id) => full.trace.phases[id]?.path);
    expect(censored).toEqual(['step[step=2]']);
    await estimate('estimate.mtrace', '3', '1');
    const compared = await run('compare', 'estimate.mtrace', 'oom/rank00000.mtcapture');
    expect(compared.out).toContain('is not scored');
    expect(compared.out).toMatch(/step\[step=2\] .* – +– +censored/);
    expect(compared.out).toMatch(/step\[step=1\] .* 0 B +0\.00 +scored/);
  });

  test('an exception leaves a file as well', async () => {
    const done = await run(...capture('error', python, SCRIPT, 'error'));
    expect(done.status).toBe(4);
    const failed = (await readMeasuredRun(
      join(folder, 'error/rank00000.mtcapture'),
    )) as CapturedRun;
    expect(failed.capture.ended).toEqual({ how: 'exception', error: 'ValueError: bad batch' });
  });

  test('calibration: a profile, its use, and what it refuses', async () => {
    await twoRanks();
    const captured = await run(
      'capture',
      ...['--purpose', 'calibration', '--out', 'calibration'],
      ...['--', ...overFake, python, SCRIPT],
    );
    expect([captured.status, captured.error]).toEqual([0, '']);
    const profiled = await run('calibrate', 'calibration', '--name', 'fake', '--json');
    expect(profiled.status).toBe(0);
    const profile = JSON.parse(profiled.out);
    expect(profile.topology).toMatchObject({ gpu: 'NVIDIA H200', world: 1 });
    expect(profile.components[0]).toMatchObject({
      bytes: { low: CONTEXT, likely: CONTEXT, high: CONTEXT },
      evidence: 'calibrated',
    });
    expect(readdirSync(join(folder, 'config/memtracker/calibration'))).toEqual(['fake.json']);

    await estimate('estimate.mtrace', '3', '1');
    const used = await run('report', 'estimate.mtrace', '--profile', 'fake', '--json');
    expect(used.status).toBe(0);
    expect(JSON.stringify(JSON.parse(used.out))).toContain('calibrated');

    const validation = await run('calibrate', 'run');
    expect(validation.error).toContain('captured for validation and cannot calibrate');
    const scored = await run('compare', 'estimate.mtrace', 'calibration/rank00000.mtcapture');
    expect(scored.error).toContain('was captured for calibration');
    await estimate('two.mtrace', '1', '2');
    const elsewhere = await run('report', 'two.mtrace', '--profile', 'fake');
    expect(elsewhere.status).toBe(3);
    expect(elsewhere.error).toContain('1 ranks instead of 2');
    const extrapolated = await run('report', 'two.mtrace', '--profile', 'fake', '--extrapolate');
    expect(extrapolated.out).toContain('extrapolated from calibration profile fake');
  });
});

function resolvePython(): string {
  const python = pythonOfJudge();
  if (python.includes('/')) return python;
  return spawnSync('which', [python], { encoding: 'utf8' }).stdout.trim();
}
