// Runs one work unit and takes its trace into the cache. What every executor ends in.

import { rm } from 'node:fs/promises';
import { ExitStatus } from '../base/errors.ts';
import { findGpu } from '../device/gpus.ts';
import type { LiveProgress } from '../sidecar/live_progress.ts';
import { checkJob, type TraceContext, type TraceJob, traceRun } from '../sidecar/trace_run.ts';
import type { TraceResult } from './executor.ts';
import type { TraceCache } from './trace_cache.ts';
import type { WorkUnit } from './work_unit.ts';

/** Deep enough to name the line of the user's model under the framework's own frames. */
const STACK_DEPTH = 48;

export interface TraceUnitContext {
  readonly cache: TraceCache;
  readonly trace: Omit<TraceContext, 'onProgress'>;
  readonly onProgress?: (progress: LiveProgress) => void;
}

function jobOf(unit: WorkUnit, out: string): TraceJob {
  return {
    framework: unit.framework,
    checkout: unit.checkout ?? undefined,
    argv: unit.argv,
    cwd: unit.cwd,
    world: unit.world,
    rank: unit.rank,
    gpusPerNode: unit.gpus_per_node,
    gpu: findGpu(unit.gpu),
    steps: unit.steps,
    stackDepth: STACK_DEPTH,
    options: unit.options,
    out,
  };
}

/** What is wrong with a unit whatever runs it. @throws UserError for a framework, checkout, option or rank that is not there. */
export function checkUnit(unit: WorkUnit): void {
  checkJob(jobOf(unit, ''));
}

/**
 * Never rejects for what the training code or the worker did: that is the result's `failure`. A trace of a failed run is kept
 * beside the cache under its own name, so that it can be read, and is made again next time.
 */
export async function traceUnit(
  key: string,
  unit: WorkUnit,
  context: TraceUnitContext,
): Promise<TraceResult> {
  const { cache, trace, onProgress } = context;
  const cached = await cache.get(key);
  if (cached !== undefined) return { key, path: cached, failure: null };
  let partial: string | undefined;
  try {
    partial = await cache.partial(key);
    const outcome = await traceRun(jobOf(unit, partial), {
      ...trace,
      env: { ...trace.env, ...unit.environment },
      ...(onProgress !== undefined && { onProgress }),
    });
    if (outcome.exitStatus === ExitStatus.done || outcome.exitStatus === ExitStatus.uncovered) {
      return { key, path: await cache.keep(key, partial), failure: null };
    }
    const path = await cache.keepFailed(key, partial);
    return { key, path, failure: outcome.problems.join(' ') || 'the run failed' };
  } catch (error) {
    if (partial !== undefined) await rm(partial, { force: true });
    return { key, path: null, failure: isFull(error) ? fullDisk(cache) : (error as Error).message };
  }
}

function isFull(error: unknown): boolean {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOSPC') return true;
  }
  return false;
}

function fullDisk({ folder }: TraceCache): string {
  return `the disk is full where traces are kept (${folder}); free some space (memtracker cache prune), or set MEMTRACKER_CACHE to a folder on another disk`;
}
