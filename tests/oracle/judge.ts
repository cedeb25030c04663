// The real allocator as the judge: runs traces through oracle.py and through the model, and compares every step.

import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { replayTrace, type StepRow } from '../../src/allocator/replay_trace.ts';

const HERE = import.meta.dirname;

/** Where `python` with torch 2.14.1 is: MEMTRACKER_PYTHON, else `python3`. */
export function pythonOfJudge(): string {
  return process.env.MEMTRACKER_PYTHON ?? 'python3';
}

/** Why the real allocator cannot be run here, or null. Builds the fake CUDA. */
export function whyNoJudge(): string | null {
  const python = pythonOfJudge();
  const torch = spawnSync(
    python,
    ['-c', 'import torch; print(torch.__version__, torch.version.cuda)'],
    { encoding: 'utf8' },
  );
  if (torch.error) return `${python}: ${torch.error.message}`;
  if (torch.status !== 0) return `${python} has no torch (set MEMTRACKER_PYTHON)`;
  const [version, cuda] = torch.stdout.trim().split(' ');
  if (!version.startsWith('2.14.1')) return `${python} has torch ${version}, not 2.14.1`;
  if (cuda === 'None') return `${python} has torch ${version}, which is not a CUDA build`;
  const build = spawnSync(python, [join(HERE, 'fake_cuda', 'build.py')], { encoding: 'utf8' });
  return build.status === 0 ? null : `the fake CUDA cannot be built: ${build.stderr.trim()}`;
}

/** Writes `count` random traces from seed `first` into `folder`. */
export function generateTraces(folder: string, first: number, count: number, steps: number): void {
  python('generate.py', [
    '--dir',
    folder,
    '--first',
    `${first}`,
    '--count',
    `${count}`,
    '--steps',
    `${steps}`,
  ]);
}

/** Runs traces on the real allocator; a trace that crashes it leaves a shorter file. */
export function judge(traces: readonly string[], folder: string): void {
  python('oracle.py', ['--batch', folder, ...traces], { mayFail: true });
}

export interface Verdict {
  readonly steps: number;
  /** The first step that differs: what the model says and what the real allocator did. */
  readonly difference: { readonly model: unknown; readonly real: unknown } | null;
  /** The step at which the model says that PyTorch is undefined, or null. */
  readonly undefinedAt: number | null;
  /** Steps that the real allocator survived. */
  readonly judged: number;
}

/** Compares a trace's every step, up to where PyTorch is undefined. */
export async function compare(trace: string, judgement: string): Promise<Verdict> {
  const real: StepRow[] = existsSync(judgement)
    ? lines(judgement).map((line) => JSON.parse(line))
    : [];
  let steps = 0;
  for await (const row of replayTrace(lines(trace), trace)) {
    if (row.undefined !== undefined) {
      return { steps, difference: null, undefinedAt: steps, judged: real.length };
    }
    const text = JSON.stringify(row);
    const model = JSON.parse(text) as StepRow;
    // Nearly always the two are the same to the letter.
    const same =
      text === JSON.stringify(real[steps]) ||
      isDeepStrictEqual(comparable(model), comparable(real[steps]));
    if (!same) {
      const difference = { model, real: real[steps] };
      return { steps, difference, undefinedAt: null, judged: real.length };
    }
    steps++;
  }
  return { steps, difference: null, undefinedAt: null, judged: real.length };
}

/**
 * Blocks freed during a capture come back in the order of their pointers in PyTorch, which nothing can predict: the
 * order of neighbouring free_completed events is not compared.
 */
function comparable(row: StepRow | undefined): unknown {
  if (row === undefined) return undefined;
  const events: unknown[] = [];
  let completed: string[] = [];
  for (const event of row.events) {
    if (event[0] === 'free_completed') {
      completed.push(JSON.stringify(event));
      continue;
    }
    events.push(...completed.sort(), event);
    completed = [];
  }
  return { ...row, events: [...events, ...completed.sort()] };
}

function lines(path: string): string[] {
  return readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line !== '');
}

function python(script: string, args: readonly string[], { mayFail = false } = {}): void {
  const done = spawnSync(pythonOfJudge(), ['-W', 'ignore', join(HERE, script), ...args], {
    encoding: 'utf8',
    maxBuffer: 1 << 26,
  });
  if (done.error) throw done.error;
  if (done.status !== 0 && !mayFail) throw new Error(`${script} failed:\n${done.stderr}`);
}
