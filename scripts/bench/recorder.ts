// What recording costs: the steady step of a script with the recorder, stacks, modules and owners on, against the same script on
// fake tensors alone. Medians of the steps after the first two, in processes of their own.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { findGpu } from '../../src/device/gpus.ts';
import { ensureEnvironment } from '../../src/sidecar/environment.ts';
import { packageFolder } from '../../src/sidecar/package_folder.ts';
import { traceRun } from '../../src/sidecar/trace_run.ts';
import type { Benchmark } from './benchmark.ts';

const SCRIPT = fileURLToPath(new URL('transformer.py', import.meta.url));
const BARE = fileURLToPath(new URL('without_recorder.py', import.meta.url));
const WARM_UP_STEPS = 2;
const STEPS = 12;

function steadyStep(lines: readonly string[]): number {
  const seconds = lines
    .map((line) => /^step seconds ([\d.]+)$/.exec(line)?.[1])
    .filter((text) => text !== undefined)
    .map(Number)
    .slice(WARM_UP_STEPS)
    .sort((a, b) => a - b);
  if (seconds.length === 0) throw new Error(`no step was timed:\n${lines.join('\n')}`);
  return seconds[Math.floor(seconds.length / 2)];
}

export const benchmark: Benchmark = {
  name: 'recorder',
  summary: 'processor time of a training step with the recorder against the same step without',
  async run() {
    const environment = await ensureEnvironment({ env: process.env });
    const folder = await mkdtemp(join(tmpdir(), 'memtracker-bench-'));
    try {
      const bare = await execa(environment.python, [BARE, SCRIPT], {
        env: { PYTHONPATH: packageFolder('python') },
        lines: true,
      });
      const lines: string[] = [];
      const outcome = await traceRun(
        {
          framework: 'script',
          argv: [SCRIPT],
          cwd: folder,
          world: 1,
          rank: 0,
          gpusPerNode: 1,
          gpu: findGpu('h100-80gb'),
          steps: STEPS,
          stackDepth: 24,
          options: {},
          out: join(folder, 'run.mtrace'),
        },
        {
          environment,
          env: process.env,
          memtrackerVersion: 'benchmark',
          onLine: (line) => lines.push(line),
        },
      );
      const without = steadyStep(bare.stdout);
      const recorded = steadyStep(lines);
      return [
        { what: 'step on fake tensors alone', value: without * 1000, unit: 'ms' },
        { what: 'step recorded', value: recorded * 1000, unit: 'ms' },
        {
          what: 'recorded / alone',
          value: recorded / without,
          unit: '',
          limit: { at: 'most', value: 1.5 },
        },
        { what: 'events a step', value: outcome.footer.events / STEPS, unit: '' },
      ];
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  },
};
