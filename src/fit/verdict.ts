// The verdict on one variation. Pure: everything that it rests on comes in as evidence, and every reason goes out with it.
//
//   fits          at the upper bound of everything outside the allocator, with the margin taken off the capacity, no allocation of
//                 any looked-at role fails, and nothing material is uncovered;
//   does_not_fit  at the lower bound, on the whole capacity, an allocation fails;
//   unproven      anything else, with what is missing.

import type { OutOfMemory } from '../timeline/timeline.ts';
import type { Role } from './roles.ts';

export type Verdict = 'fits' | 'does_not_fit' | 'unproven';

/** Where and how the device was full. */
export interface Failure {
  readonly kind: OutOfMemory['kind'];
  readonly phase: string;
  readonly module: string;
  readonly stack: readonly string[];
  readonly requestedBytes: number;
  /** Bytes over the capacity: what the failing call asked for less what was free of the device. */
  readonly shortBytes: number;
  readonly message: string;
}

/** What is missing for a proof. `bytes` null: size unknown. */
export interface Missing {
  readonly what: string;
  readonly bytes: number | null;
}

export interface RoleEvidence {
  readonly role: Role;
  /** Path of the trace; null when the run never produced one. */
  readonly trace: string | null;
  /** Largest resident, bytes, at the lower, likely and upper figure of what is outside the allocator; NaN: unknown. */
  readonly residentPeak: { readonly low: number; readonly likely: number; readonly high: number };
  readonly reservedPeak: number;
  readonly allocatedPeak: number;
  readonly peakPhase: string;
  /** Most micro-batches whose activations were live at once; null when the adapter does not label them. */
  readonly liveMicroBatches: number | null;
  /** The replay on the whole capacity at the lower bound. */
  readonly low: Failure | null;
  /** The replay on capacity less margin at the upper bound; null when it went through. */
  readonly high: Failure | null;
  /**
   * Largest resident of the upper replay, bytes; NaN when it failed. Below `residentPeak.high` where the allocator gave its
   * cache back on the way.
   */
  readonly upperPeak: number;
  /** cudaMalloc retries (cache flushes) of the upper replay: it fits, but slowly. */
  readonly retries: number;
  /** Uncovered operators, kernels, unknown external memory. */
  readonly missing: readonly Missing[];
  /** Named assumptions that the run took. */
  readonly assumptions: readonly string[];
  /** Why the trace is not whole; empty when it is. */
  readonly faults: readonly string[];
}

export interface Judgement {
  readonly verdict: Verdict;
  /** Sentences, the decisive one first. */
  readonly reasons: readonly string[];
  /** The role that decides: the failing one, else the one with the largest resident. */
  readonly worst: RoleEvidence | null;
  readonly missing: readonly Missing[];
  readonly assumptions: readonly string[];
}

/** Judges one variation. `failed`: why nothing (or not everything) could be traced. */
export function judge(roles: readonly RoleEvidence[], failed: readonly string[]): Judgement {
  const worst = worstOf(roles);
  const missing = roles.flatMap((role) => role.missing);
  const assumptions = [...new Set(roles.flatMap((role) => role.assumptions))];
  const base = { worst, missing: distinct(missing), assumptions };

  const full = roles.find((role) => role.low !== null);
  if (full?.low) {
    const { low } = full;
    return {
      ...base,
      worst: full,
      verdict: 'does_not_fit',
      reasons: [`${full.role.label} runs out of memory in ${low.phase}: ${low.message}`],
    };
  }
  const reasons: string[] = [...failed];
  for (const role of roles) {
    for (const fault of role.faults) reasons.push(`${role.role.label}: ${fault}`);
    if (role.high !== null) {
      reasons.push(
        `${role.role.label}: at the upper bound of memory outside the allocator, less the margin, ${role.high.phase} is ` +
          'out of memory',
      );
    }
    if (Number.isNaN(role.residentPeak.high)) {
      reasons.push(`${role.role.label}: memory outside the allocator has no upper bound`);
    }
    for (const { what } of role.missing) reasons.push(`${role.role.label}: not covered: ${what}`);
  }
  if (roles.length === 0 && reasons.length === 0) reasons.push('nothing was traced');
  if (reasons.length > 0) return { ...base, verdict: 'unproven', reasons: [...new Set(reasons)] };
  return { ...base, verdict: 'fits', reasons: [] };
}

function worstOf(roles: readonly RoleEvidence[]): RoleEvidence | null {
  let worst: RoleEvidence | null = null;
  for (const role of roles) {
    if (worst === null || role.residentPeak.likely > worst.residentPeak.likely) worst = role;
  }
  return worst;
}

function distinct(missing: readonly Missing[]): Missing[] {
  return [...new Map(missing.map((item) => [item.what, item])).values()];
}
