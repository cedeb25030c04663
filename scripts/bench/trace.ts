// The main job, timed: Llama 3 8B of a TorchTitan checkout, sequence 8192, FSDP over 8 ranks, full activation checkpointing, two
// steps. The whole command, from its start to the written trace, in a process of its own.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { z } from 'zod';
import { ensureEnvironment } from '../../src/sidecar/environment.ts';
import { readTrace } from '../../src/trace/reader.ts';
import type { Benchmark } from './benchmark.ts';

const MAIN = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url));

const outcomeSchema = z.object({
  path: z.string(),
  events: z.number(),
  file_bytes: z.number(),
  live_peak_bytes: z.number(),
  worker_peak_rss: z.number().nullable(),
});

export const benchmark: Benchmark = {
  name: 'trace',
  summary:
    'memtracker trace of TorchTitan Llama 3 8B, 8192 tokens, FSDP 8, full recompute, 2 steps',
  async run() {
    const checkout = process.env.MEMTRACKER_TORCHTITAN;
    if (checkout === undefined) return 'MEMTRACKER_TORCHTITAN does not name a TorchTitan checkout';
    await ensureEnvironment({ env: process.env });
    const folder = await mkdtemp(join(tmpdir(), 'memtracker-bench-'));
    try {
      const job = ['--framework', 'torchtitan', '--checkout', checkout, '--world', '8'];
      const argv = ['--module', 'llama3', '--config', 'llama3_8b', 'activation-checkpoint:full'];
      const out = ['--json', '--out', join(folder, '8b.mtrace')];
      const started = performance.now();
      const command = ['--import', 'tsx', MAIN, 'trace', ...job, ...out, '--', ...argv];
      const result = await execa(process.execPath, command, { reject: false });
      const seconds = (performance.now() - started) / 1000;
      if (result.exitCode !== 0 && result.exitCode !== 2) throw new Error(result.stderr);
      const outcome = outcomeSchema.parse(JSON.parse(result.stdout));
      const read = performance.now();
      await readTrace(outcome.path);
      const readSeconds = (performance.now() - read) / 1000;
      return [
        { what: 'whole command', value: seconds, unit: 's', limit: { at: 'most', value: 60 } },
        {
          what: 'memory of the worker',
          value: (outcome.worker_peak_rss ?? Number.NaN) / 2 ** 30,
          unit: 'GiB',
          limit: { at: 'most', value: 4 },
        },
        {
          what: 'trace file, an event',
          value: outcome.file_bytes / outcome.events,
          unit: 'bytes',
          limit: { at: 'most', value: 40 },
        },
        { what: 'events', value: outcome.events, unit: '' },
        { what: 'reading the trace', value: readSeconds, unit: 's' },
        {
          what: 'live storages at the peak',
          value: outcome.live_peak_bytes / 2 ** 30,
          unit: 'GiB',
        },
      ];
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  },
};
