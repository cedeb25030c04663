// Bisection over real runs. No formula and no assumption but one, which is said in the result: that the verdict does not
// turn back to `fits` above a value that does not fit.

import { UserError } from '../base/errors.ts';
import type { Verdict } from './verdict.ts';

export interface Probe {
  readonly value: number;
  readonly verdict: Verdict;
}

export interface SearchResult {
  /** The largest (maximize) or smallest (minimize) value that fits; null when none in the range does. */
  readonly best: number | null;
  /** In the order in which they ran. */
  readonly probes: readonly Probe[];
}

export interface SearchRange {
  readonly from: number;
  readonly to: number;
  /** Values are from, from + step, …; 1 unless stated. */
  readonly step?: number;
}

/**
 * The largest value in the range that fits, in at most ceil(log2(n + 1)) probes of its n values (n values have n + 1
 * possible answers). The neighbour above the answer has been probed too, unless the answer is the end of the range.
 */
export async function maximize(
  range: SearchRange,
  probe: (value: number) => Promise<Verdict>,
): Promise<SearchResult> {
  const { values, probes, ask } = start(range, probe);
  // Invariant: everything at index < low fits, everything at index >= high does not.
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((await ask(values[middle])) === 'fits') low = middle + 1;
    else high = middle;
  }
  return { best: low === 0 ? null : values[low - 1], probes };
}

/** The smallest value in the range that fits; as {@link maximize}, from the other side. */
export async function minimize(
  range: SearchRange,
  probe: (value: number) => Promise<Verdict>,
): Promise<SearchResult> {
  const { values, probes, ask } = start(range, probe);
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((await ask(values[middle])) === 'fits') high = middle;
    else low = middle + 1;
  }
  return { best: high === values.length ? null : values[high], probes };
}

function start(range: SearchRange, probe: (value: number) => Promise<Verdict>) {
  const step = range.step ?? 1;
  if (!(step > 0) || range.to < range.from) {
    throw new UserError(
      'SEARCH_RANGE',
      `nothing to search between ${range.from} and ${range.to} in steps of ${step}; write KEY:FROM..TO with FROM below TO`,
    );
  }
  const values: number[] = [];
  for (let value = range.from; value <= range.to; value += step) values.push(value);
  const probes: Probe[] = [];
  const ask = async (value: number): Promise<Verdict> => {
    const verdict = await probe(value);
    probes.push({ value, verdict });
    return verdict;
  };
  return { values, probes, ask };
}
