// Folds long repetitions in a list of phases: of many siblings of one name, the one with the largest peak stays in sight.

import type { PhaseReport } from '../../document_schema.ts';

/** So many siblings of one name are shown one by one. */
const FOLD_FROM = 4;

export interface PhaseRow {
  readonly index: number;
  /** Indices of phases that stand behind this one; empty for a phase of its own. */
  readonly folded: readonly number[];
}

/** Leaves (phases without inner phases) that follow each other at one depth with one name are one row. */
export function repeatedRuns(phases: readonly PhaseReport[]): PhaseRow[] {
  const rows: PhaseRow[] = [];
  for (let start = 0; start < phases.length; ) {
    let stop = start + 1;
    while (stop < phases.length && alike(phases, start, stop)) stop++;
    if (stop - start < FOLD_FROM) {
      for (let index = start; index < stop; index++) rows.push({ index, folded: [] });
    } else {
      const members = Array.from({ length: stop - start }, (_, i) => start + i);
      const largest = members.reduce((best, index) =>
        (phases[index].peak.allocated.bytes ?? 0) > (phases[best].peak.allocated.bytes ?? 0)
          ? index
          : best,
      );
      rows.push({ index: largest, folded: members.filter((index) => index !== largest) });
    }
    start = stop;
  }
  return rows;
}

function alike(phases: readonly PhaseReport[], first: number, other: number): boolean {
  const [a, b] = [phases[first], phases[other]];
  const inside = phases[other + 1];
  const isLeaf = inside === undefined || inside.depth <= b.depth;
  return a.depth === b.depth && a.name === b.name && isLeaf && a.device === b.device;
}
