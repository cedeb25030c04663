// One measured job, traced without a GPU, replayed through the allocator and put beside its measurement.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { TiB } from '../../src/base/bytes.ts';
import { ExitStatus } from '../../src/base/errors.ts';
import { findGpu } from '../../src/device/gpus.ts';
import { deviceForTrace } from '../../src/device/trace_device.ts';
import type { PythonEnvironment } from '../../src/sidecar/environment.ts';
import { traceRun } from '../../src/sidecar/trace_run.ts';
import { mainDevice, replay } from '../../src/timeline/replay.ts';
import { readTrace } from '../../src/trace/reader.ts';
import { type Quantity, type TruthCase, WHENS, type When } from './truth.ts';

export const comparisonSchema = z.object({
  quantity: z.enum(['allocated', 'peak_allocated', 'peak_reserved']),
  when: z.enum(WHENS),
  measured: z.number(),
  estimated: z.number(),
});
export type Comparison = z.infer<typeof comparisonSchema>;

export const caseResultSchema = z.object({
  id: z.string(),
  group: z.string(),
  measured: z.string(),
  /** What it was measured with, where that is known. */
  software: z.string().nullable(),
  /** Empty when the case did not run. */
  comparisons: z.array(comparisonSchema),
  /** Why it did not run; null when it did. */
  failure: z.string().nullable(),
  seconds: z.number(),
  /** Peak resident bytes of the worker process; null where the platform does not tell. */
  workerBytes: z.number().nullable(),
  /** Assumptions that the trace names. */
  uncovered: z.array(z.string()),
});
export type CaseResult = z.infer<typeof caseResultSchema>;

export interface RunOptions {
  readonly checkout: string;
  readonly environment: PythonEnvironment;
  readonly signal?: AbortSignal;
  /** Keep the trace under this folder. */
  readonly keep?: string | undefined;
}

/** Name of the phase of no length that an adapter opens where the framework reads its memory statistics. */
const MARK = 'memory_log';

/** Traces the case and compares. Never rejects for a failed run; the failure is part of the result. */
export async function runCase(truth: TruthCase, options: RunOptions): Promise<CaseResult> {
  const folder = await mkdtemp(join(tmpdir(), 'memtracker-accuracy-'));
  const started = Date.now();
  const base = {
    id: truth.id,
    group: truth.group,
    measured: truth.measured,
    software: truth.software ?? null,
  };
  try {
    const out = join(options.keep ?? folder, `${truth.id.replaceAll('/', '__')}.mtrace`);
    const outcome = await traceRun(
      {
        framework: truth.framework,
        checkout: options.checkout,
        argv: truth.argv,
        cwd: options.checkout,
        world: truth.world,
        rank: truth.rank,
        gpusPerNode: truth.gpusPerNode,
        gpu: findGpu(truth.gpu),
        steps: truth.steps,
        stackDepth: options.keep === undefined ? 0 : 16,
        options: truth.options,
        out,
      },
      {
        environment: options.environment,
        env: { ...process.env, ...truth.env },
        memtrackerVersion: 'accuracy',
        ...(options.signal && { signal: options.signal }),
      },
    );
    const failed =
      outcome.exitStatus !== ExitStatus.done && outcome.exitStatus !== ExitStatus.uncovered;
    const failure = failed ? (outcome.problems[0] ?? `status ${outcome.footer.status}`) : null;
    return {
      ...base,
      comparisons: failed ? [] : await compareWith(truth, out),
      failure: failure === null ? null : told(failure, truth, options),
      seconds: (Date.now() - started) / 1000,
      workerBytes: outcome.footer.worker_peak_rss,
      uncovered: [...new Set(outcome.uncovered.map((event) => `${event.kind} ${event.name}`))],
    };
  } catch (error) {
    return {
      ...base,
      comparisons: [],
      failure: told((error as Error).message, truth, options),
      seconds: (Date.now() - started) / 1000,
      workerBytes: null,
      uncovered: [],
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** A failure in one line, with the paths of the frameworks from their own top. */
function told(message: string, truth: TruthCase, { checkout }: RunOptions): string {
  const folders = [checkout, String(truth.options.transformer_engine ?? checkout)];
  const short = folders.reduce((text, folder) => text.replaceAll(`${folder}/`, ''), message);
  const [what] = short.split(' (install it:'); // advice for this machine
  return (what ?? short).replace(/\s+/g, ' ').slice(0, 300);
}

async function compareWith(truth: TruthCase, path: string): Promise<Comparison[]> {
  const trace = await readTrace(path);
  const device = mainDevice(trace);
  if (device === undefined) return [];
  // A device that is never full: an out-of-memory would empty the cache, and the measured job ran to its end.
  const { device: gpu } = deviceForTrace(trace.header, { usableBytes: 8 * TiB });
  const timeline = replay(trace, device, gpu);
  const marks = timeline.phases.filter(({ phase }) => phase.name === MARK);
  if (marks.length === 0) throw new Error(`the trace has no phase ${MARK}`);
  const value = (quantity: Quantity, when: When): number => {
    const steps = { first: 0, second: 1, last: marks.length - 1 };
    const mark = marks[Math.min(steps[when], steps.last)];
    if (quantity === 'allocated') return mark.before.allocated;
    const series =
      quantity === 'peak_allocated' ? timeline.series.allocated : timeline.series.reserved;
    let peak = 0;
    for (let event = 0; event <= mark.phase.beginEvent; event++) {
      if (series[event] > peak) peak = series[event];
    }
    return peak;
  };
  return truth.measures.map(({ quantity, when, bytes }) => ({
    quantity,
    when,
    measured: bytes,
    estimated: value(quantity, when),
  }));
}
