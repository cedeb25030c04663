// Runs work units on this machine, as many at once as cores and memory allow.

import { readFile } from 'node:fs/promises';
import { availableParallelism, freemem } from 'node:os';
import pLimit from 'p-limit';
import { GiB } from '../../base/bytes.ts';
import {
  type Executor,
  type ExecutorHooks,
  PROGRESS,
  type TraceRequest,
  type TraceResult,
} from '../executor.ts';
import { type TraceUnitContext, traceUnit } from '../trace_unit.ts';

/**
 * Resident set that one worker is expected to need. Largest seen in the runs of the accuracy tables: 0.9 GiB (a 671B-class
 * rank); with room for a larger stack and event backlog.
 */
export const WORKER_BYTES = 1.5 * GiB;

export interface LocalOptions extends TraceUnitContext {
  /** Workers at once; undefined: what cores and memory allow. */
  readonly jobs: number | undefined;
}

export class LocalExecutor implements Executor {
  readonly name = 'local';
  readonly #options: LocalOptions;

  constructor(options: LocalOptions) {
    this.#options = options;
  }

  async run(requests: readonly TraceRequest[], hooks: ExecutorHooks): Promise<TraceResult[]> {
    for (const request of requests) hooks.onProgress(request, PROGRESS.waiting);
    const limit = pLimit(this.#options.jobs ?? (await workersThatFit()));
    return Promise.all(requests.map((request) => limit(() => this.#one(request, hooks))));
  }

  async #one(request: TraceRequest, hooks: ExecutorHooks): Promise<TraceResult> {
    if (hooks.signal.aborted) return { key: request.key, path: null, failure: 'interrupted' };
    hooks.onProgress(request, PROGRESS.running);
    const result = await traceUnit(request.key, request.unit, {
      ...this.#options,
      trace: { ...this.#options.trace, signal: hooks.signal },
      onProgress: (live) => {
        hooks.onProgress(request, { state: 'running', text: live.line(request.label) });
      },
    });
    hooks.onProgress(request, result.failure === null ? PROGRESS.done : PROGRESS.failed);
    return result;
  }
}

/** One at least: a worker that is alone and still short of memory is killed by the kernel, and its result says so. */
async function workersThatFit(): Promise<number> {
  const byMemory = Math.floor((await availableMemory()) / WORKER_BYTES);
  return Math.max(1, Math.min(availableParallelism(), byMemory));
}

/** MemAvailable counts reclaimable cache; os.freemem() does not. A cgroup limit (containers, Slurm) is honoured. */
async function availableMemory(): Promise<number> {
  const meminfo = await readFile('/proc/meminfo', 'utf8').catch(() => '');
  const match = /^MemAvailable:\s+(\d+) kB$/m.exec(meminfo);
  const machine = match === null ? freemem() : Number(match[1]) * 1024;
  const [limit, used] = await Promise.all(
    ['memory.max', 'memory.current'].map((name) =>
      readFile(`/sys/fs/cgroup/${name}`, 'utf8').then(Number, () => Number.NaN),
    ),
  );
  return Number.isFinite(limit) && Number.isFinite(used)
    ? Math.min(machine, limit - used)
    : machine;
}
