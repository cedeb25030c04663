// Who runs the traces of a fit. One interface; on this machine, as a Slurm job array, or on a Ray cluster. Every executor runs the
// same work unit through the same function (trace_unit.ts) and leaves its result in the same cache.

import type { WorkUnit } from './work_unit.ts';

export interface TraceRequest {
  readonly key: string;
  readonly unit: WorkUnit;
  /** What the unit is for, in words: the variation and the role. */
  readonly label: string;
}

export interface TraceResult {
  readonly key: string;
  /** The kept trace; also of a run whose training code failed, up to the failure. Null when there is nothing to read. */
  readonly path: string | null;
  /** Why the run did not end well, one paragraph; null when it did. */
  readonly failure: string | null;
}

/** Where one unit stands, for people. */
export interface UnitProgress {
  readonly state: 'waiting' | 'running' | 'done' | 'failed' | 'cached';
  /** Phase, step, events and peak so far, where the executor can see them. */
  readonly text: string;
}

export interface ExecutorHooks {
  readonly onProgress: (request: TraceRequest, progress: UnitProgress) => void;
  /** Aborted by Ctrl-C: workers end, what is finished is kept. */
  readonly signal: AbortSignal;
}

export interface Executor {
  readonly name: string;
  /**
   * Runs every request and returns one result each, in the same order. A unit that fails does not stop the others.
   * @throws UserError when the executor itself cannot work (no Slurm, no cluster).
   */
  run(requests: readonly TraceRequest[], hooks: ExecutorHooks): Promise<TraceResult[]>;
}

/** The states without a text. */
export const PROGRESS: Readonly<Record<UnitProgress['state'], UnitProgress>> = {
  waiting: { state: 'waiting', text: '' },
  running: { state: 'running', text: '' },
  done: { state: 'done', text: '' },
  failed: { state: 'failed', text: '' },
  cached: { state: 'cached', text: '' },
};
