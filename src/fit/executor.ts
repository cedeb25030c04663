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
  readonly phase: string;
  readonly step: number;
  readonly steps: number;
  readonly events: number;
  /** Largest live bytes on the GPU so far. */
  readonly liveBytes: number;
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

export const PROGRESS: Readonly<Record<UnitProgress['state'], UnitProgress>> = {
  waiting: { state: 'waiting', phase: '', step: 0, steps: 0, events: 0, liveBytes: 0 },
  running: { state: 'running', phase: '', step: 0, steps: 0, events: 0, liveBytes: 0 },
  done: { state: 'done', phase: '', step: 0, steps: 0, events: 0, liveBytes: 0 },
  failed: { state: 'failed', phase: '', step: 0, steps: 0, events: 0, liveBytes: 0 },
  cached: { state: 'cached', phase: '', step: 0, steps: 0, events: 0, liveBytes: 0 },
};
