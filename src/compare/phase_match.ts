// Which phase of one run is which phase of the other. Phases match by name, step, micro-batch, their other own labels and occurrence;
// the phases around them do not count, because a measured run or another framework version may nest them differently.

import type { PhaseSpan } from '../timeline/timeline.ts';
import { labelOf, type Trace } from '../trace/trace.ts';

export interface PhasePair {
  /** One side is null where the other run has no such phase. */
  readonly a: PhaseSpan | null;
  readonly b: PhaseSpan | null;
}

/** Pairs in the order of `a`; phases that only `b` has stand where they stood in `b`. */
export function matchPhases(
  a: readonly PhaseSpan[],
  aTrace: Trace,
  b: readonly PhaseSpan[],
  bTrace: Trace,
): PhasePair[] {
  const keysOfA = keys(a, aTrace);
  const keysOfB = keys(b, bTrace);
  const inB = new Map(keysOfB.map((key, i) => [key, i]));
  const inA = new Set(keysOfA);
  const pairs: PhasePair[] = [];
  let next = 0;
  const onlyInB = (until: number) => {
    for (; next < until; next++) if (!inA.has(keysOfB[next])) pairs.push({ a: null, b: b[next] });
  };
  a.forEach((span, i) => {
    const found = inB.get(keysOfA[i]);
    if (found !== undefined && found >= next) {
      onlyInB(found);
      next = found + 1;
    }
    pairs.push({ a: span, b: found === undefined ? null : b[found] });
  });
  onlyInB(b.length);
  return pairs;
}

function keys(spans: readonly PhaseSpan[], trace: Trace): string[] {
  const seen = new Map<string, number>();
  return spans.map(({ phase }) => {
    const { step: _step, micro_batch: _microBatch, ...others } = phase.labels;
    const key = JSON.stringify([
      phase.name,
      labelOf(trace, phase.id, 'step') ?? null,
      labelOf(trace, phase.id, 'micro_batch') ?? null,
      // As text: a snapshot has no other types.
      Object.entries(others)
        .map(([label, value]) => `${label}=${String(value)}`)
        .sort(),
    ]);
    const occurrence = seen.get(key) ?? 0;
    seen.set(key, occurrence + 1);
    return `${key} ${occurrence}`;
  });
}
