// `memtracker capture`, `calibrate`, `report` and `compare` as a user starts them, over the real torch 2.14.1 with its real allocator;
// only the driver under it is fake (tests/oracle). MEMTRACKER_PYTHON names a Python with that torch.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { MiB } from '../../src/base/bytes.ts';
import type { CapturedRun } from '../../src/measured/capture/capture_run.ts';
import { readMeasuredRun } from '../../src/measured/formats.ts';
import { pythonOfJudge, whyNoJudge } from '../oracle/judge.ts';

const reason = whyNoJudge();
if (reason !== null) {
  console.warn(`\nSKIPPED: capture is not tried on a real torch: ${reason}\n`);
}

const ROOT = resolve(import.meta.dirname, '../..');
const MAIN = join(ROOT, 'src/cli/main.ts');
/** By path: the commands run in another folder. */
const TSX = createRequire(import.meta.url).resolve('tsx');
const SCRIPT = join(import.meta.dirname, 'small_training.py');
const BUILD = join(ROOT, 'tests/oracle/build');
/** What the fake driver says is in use before anything is allocated. */
const CONTEXT = 500 * MiB;

describe.skipIf(reason !== null)('capture', { timeout: 300_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-capture-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  function memtracker(...args: string[]): { status: number | null; out: string; error: string } {
    const done = spawnSync(process.execPath, ['--import', TSX, MAIN, ...args], {
      encoding: 'utf8',
      cwd: folder,
      env: {
        ...process.env,
        XDG_CONFIG_HOME: join(folder, 'config'),
        FAKECUDA_BYTES: String(8192 * MiB),
        FAKECUDA_CTX_BYTES: String(CONTEXT),
        FAKECUDA_DEVICES: '2',
        TORCH_CPP_LOG_LEVEL: 'ERROR',
        OMP_NUM_THREADS: '1',
      },
    });
    return { status: done.status, out: done.stdout, error: done.stderr };
  }

  /** Traces the same script, once. */
  function estimate(out: string, steps: string, world: string): void {
    if (existsSync(join(folder, out))) return;
    const gpu = ['--gpu', 'h200-141gb', '--steps', steps, '--world', world];
    const done = memtracker('trace', ...gpu, '--out', out, '--', SCRIPT);
    expect([done.status, done.error.includes('error:')]).toEqual([0, false]);
  }

  /** Only the job itself runs over the fake driver. */
  const overFake = [
    'env',
    `LD_PRELOAD=${join(BUILD, 'libfakecuda.so')}:${join(BUILD, 'libfakecublas.so')}`,
    `LD_LIBRARY_PATH=${join(BUILD, 'lib')}`,
  ];
  const python = reason === null ? resolvePython() : '';
  const torchrun = join(dirname(python), 'torchrun');

  test('two ranks under torchrun, one file each, phases and owners of a trace', async () => {
    const done = memtracker(
      'capture',
      '--out',
      'run',
      '--',
      ...overFake,
      torchrun,
      '--nproc-per-node',
      '2',
      SCRIPT,
    );
    expect(done.error).toBe('');
    expect(done.status).toBe(0);
    expect(done.out).toBe('run/rank00000.mtcapture\nrun/rank00001.mtcapture\n');

    const run = (await readMeasuredRun(join(folder, 'run/rank00001.mtcapture'))) as CapturedRun;
    expect(run.capture).toMatchObject({ rank: 1, world: 2, disturbed_by: [], framework: 'script' });
    expect(run.trace.integrity.complete).toBe(true);
    const paths = run.timeline.phases.map(({ phase }) => phase.path);
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
    for (const { after } of run.timeline.phases) expect(after.external).toBe(CONTEXT);

    const report = memtracker('report', 'run/rank00001.mtcapture');
    expect(report.status).toBe(0);
    // 4096 x 1024 twice, with biases: 8,393,728 fp32 values, of which AdamW keeps two.
    expect(report.out).toMatch(/optimizer state +64\.04 MiB/);
    expect(report.out).toMatch(/parameters +32\.02 MiB/);
  });

  test('an estimate of the same script meets it in every phase, reserved included', () => {
    estimate('estimate.mtrace', '3', '1');
    const done = memtracker('compare', 'estimate.mtrace', 'run/rank00000.mtcapture', '--json');
    expect(done.status).toBe(0);
    const { run, phases, first_parting } = JSON.parse(done.out);
    for (const kind of ['requested', 'allocated', 'active', 'reserved']) {
      expect([kind, run.peaks[kind].gap]).toEqual([kind, 0]);
    }
    expect(phases.length).toBe(19);
    for (const { path, coverage, peaks } of phases) {
      expect([path, coverage, peaks.allocated.gap]).toEqual([path, 'scored', 0]);
    }
    expect(first_parting).toBeNull();
  });

  test('a run out of memory is written, censored and not scored', async () => {
    const done = memtracker('capture', '--out', 'oom', '--', ...overFake, python, SCRIPT, 'oom');
    expect(done.status).toBe(4);
    expect(done.error).toContain('the job ended with status 1');
    const run = (await readMeasuredRun(join(folder, 'oom/rank00000.mtcapture'))) as CapturedRun;
    expect(run.capture.ended.how).toBe('out_of_memory');
    expect(run.timeline.outOfMemory?.requestedBytes).toBe(2 ** 42);
    const censored = [...run.censored].map((id) => run.trace.phases[id]?.path);
    expect(censored).toEqual(['step[step=2]']);
    estimate('estimate.mtrace', '3', '1');
    const compared = memtracker('compare', 'estimate.mtrace', 'oom/rank00000.mtcapture');
    expect(compared.out).toContain('is not scored');
    expect(compared.out).toMatch(/step\[step=2\] .* – +– +censored/);
    expect(compared.out).toMatch(/step\[step=1\] .* 0 B +0\.00 +scored/);
  });

  test('an exception leaves a file as well', async () => {
    const done = memtracker(
      'capture',
      '--out',
      'error',
      '--',
      ...overFake,
      python,
      SCRIPT,
      'error',
    );
    expect(done.status).toBe(4);
    const run = (await readMeasuredRun(join(folder, 'error/rank00000.mtcapture'))) as CapturedRun;
    expect(run.capture.ended).toEqual({ how: 'exception', error: 'ValueError: bad batch' });
  });

  test('calibration: a profile, its use, and what it refuses', () => {
    const captured = memtracker(
      'capture',
      '--purpose',
      'calibration',
      '--out',
      'calibration',
      '--',
      ...overFake,
      python,
      SCRIPT,
    );
    expect([captured.status, captured.error]).toEqual([0, '']);
    const made = memtracker('calibrate', 'calibration', '--name', 'fake', '--json');
    expect(made.status).toBe(0);
    const profile = JSON.parse(made.out);
    expect(profile.topology).toMatchObject({ gpu: 'NVIDIA H200', world: 1 });
    expect(profile.components[0]).toMatchObject({
      bytes: { low: CONTEXT, likely: CONTEXT, high: CONTEXT },
      evidence: 'calibrated',
    });
    expect(readdirSync(join(folder, 'config/memtracker/calibration'))).toEqual(['fake.json']);

    estimate('estimate.mtrace', '3', '1');
    const used = memtracker('report', 'estimate.mtrace', '--profile', 'fake', '--json');
    expect(used.status).toBe(0);
    expect(JSON.stringify(JSON.parse(used.out))).toContain('calibrated');

    const validation = memtracker('calibrate', 'run');
    expect(validation.error).toContain('captured for validation and cannot calibrate');
    const scored = memtracker('compare', 'estimate.mtrace', 'calibration/rank00000.mtcapture');
    expect(scored.error).toContain('was captured for calibration');
    estimate('two.mtrace', '1', '2');
    const elsewhere = memtracker('report', 'two.mtrace', '--profile', 'fake');
    expect(elsewhere.status).toBe(3);
    expect(elsewhere.error).toContain('1 ranks instead of 2');
    const extrapolated = memtracker('report', 'two.mtrace', '--profile', 'fake', '--extrapolate');
    expect(extrapolated.out).toContain('extrapolated from calibration profile fake');
  });
});

function resolvePython(): string {
  const python = pythonOfJudge();
  if (python.includes('/')) return python;
  return spawnSync('which', [python], { encoding: 'utf8' }).stdout.trim();
}
