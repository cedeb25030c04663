// A phase in words, alike in every report.

import type { PhaseMeta, Trace } from '../trace/trace.ts';

/** `step[step=1]/optimizer`, with `#2` for the second phase of the same path. `(outside every phase)` for none. */
export function phaseTitle(phase: PhaseMeta | undefined): string {
  if (phase === undefined) return '(outside every phase)';
  return phase.occurrence === 0 ? phase.path : `${phase.path}#${phase.occurrence + 1}`;
}

/** The innermost phase that was open during an event. */
export function phaseAt(trace: Trace, event: number): PhaseMeta | undefined {
  return trace.phases[trace.events.phase[event]];
}
