// The smallest change that makes a job fit: single changes that the framework's manifest names (and a few that any job has), each
// really traced and judged, in order of memory won. Never one that is already set.

import type { Fields } from '../protocol/events.ts';
import type { SuggestionManifest } from '../sidecar/adapter.ts';
import { argumentValue } from './arguments.ts';
import type { FitOutcome, FitRun } from './run.ts';
import type { SpecScalar } from './spec.ts';
import { type Variation, vary } from './variation.ts';

export interface Suggestion {
  readonly title: string;
  /** What to set, for the command line or the specification. */
  readonly change: Readonly<Record<string, SpecScalar | null>>;
  readonly outcome: FitOutcome;
  /** Bytes of the worst role's resident peak that the change wins; negative: it costs. NaN when not comparable. */
  readonly won: number;
}

interface Candidate {
  readonly title: string;
  readonly change: Readonly<Record<string, SpecScalar | null>>;
}

/**
 * Changes to try for `variation`.
 * @param effective the framework's effective configuration (facts of topic `config`), for values that are not on the command line.
 */
export function candidates(
  variation: Variation,
  manifest: readonly SuggestionManifest[],
  effective: Fields | undefined,
): Candidate[] {
  const list: Candidate[] = [];
  if (!/expandable_segments:\s*True/.test(variation.allocator)) {
    const allocator = [variation.allocator, 'expandable_segments:True'].filter(Boolean).join(',');
    list.push({ title: 'expandable segments', change: { allocator } });
  }
  for (const { title, requires, set, halve } of manifest) {
    if (requires !== undefined && currentValue(variation, effective, requires) === undefined)
      continue;
    const change: Record<string, SpecScalar | null> = {};
    let news = false;
    for (const [key, value] of Object.entries(set ?? {})) {
      change[key] = value;
      if (!isSet(variation, effective, key, value)) news = true;
    }
    for (const key of halve ?? []) {
      const now = Number(currentValue(variation, effective, key));
      if (!Number.isInteger(now) || now < 2) {
        news = false;
        break;
      }
      change[key] = Math.floor(now / 2);
      news = true;
    }
    if (news) list.push({ title, change });
  }
  const { ranks, gpusPerNode } = variation.world;
  const nodes = ranks / gpusPerNode;
  // Nodes keep their size; a single one may grow.
  if (nodes > 1 && Number.isInteger(nodes)) {
    list.push({ title: 'twice the nodes', change: { nodes: nodes * 2 } });
  } else {
    list.push({ title: 'twice the GPUs', change: { world: ranks * 2 } });
  }
  return list;
}

/** Traces and judges every candidate; those that fit come first, by bytes won. */
export async function suggest(
  run: FitRun,
  outcome: FitOutcome,
  manifest: readonly SuggestionManifest[],
  effective: Fields | undefined,
): Promise<Suggestion[]> {
  const list = candidates(outcome.variation, manifest, effective);
  const changed = list.map(({ change }) => {
    let variation = outcome.variation;
    for (const [key, value] of Object.entries(change)) variation = vary(variation, key, value);
    return variation;
  });
  const outcomes = await run.judge(changed);
  const before = outcome.judgement.worst?.residentPeak.likely ?? Number.NaN;
  return outcomes
    .map((judged, i) => ({
      ...list[i],
      outcome: judged,
      won: before - (judged.judgement.worst?.residentPeak.likely ?? Number.NaN),
    }))
    .sort((a, b) => rank(a) - rank(b) || (b.won || 0) - (a.won || 0));
}

function rank({ outcome }: Suggestion): number {
  return ['fits', 'unproven', 'does_not_fit'].indexOf(outcome.judgement.verdict);
}

function currentValue(
  variation: Variation,
  effective: Fields | undefined,
  key: string,
): SpecScalar | undefined {
  const given = argumentValue(variation.argv, key);
  if (given !== undefined) return given;
  const value = effective?.[key.replace(/^-+/, '')];
  return typeof value === 'object' || value === null ? undefined : value;
}

function isSet(
  variation: Variation,
  effective: Fields | undefined,
  key: string,
  value: SpecScalar | null,
): boolean {
  const now = currentValue(variation, effective, key);
  if (value === null || value === false) return now === undefined || now === false;
  return String(now) === String(value);
}
