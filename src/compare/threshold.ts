// `--fail-above 1GiB|2%`: how much a peak may grow before a comparison fails.

import { formatBytes, parseBytes } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';

export type Threshold =
  | { readonly kind: 'bytes'; readonly bytes: number }
  | { readonly kind: 'percent'; readonly percent: number };

/** @throws UserError when the text is neither a size nor a percentage. */
export function parseThreshold(text: string): Threshold {
  const percent = /^\s*(\d+(?:\.\d+)?)\s*%\s*$/.exec(text);
  if (percent !== null) return { kind: 'percent', percent: Number(percent[1]) };
  try {
    return { kind: 'bytes', bytes: parseBytes(text) };
  } catch (error) {
    throw new UserError(
      'bad-threshold',
      `"${text}" is not a threshold; write a size (1GiB) or a share of the first run (2%)`,
      { cause: error },
    );
  }
}

/** Has `b` grown over `a` by more than the threshold? A peak that is not known (NaN) has not. */
export function exceeds(threshold: Threshold, a: number, b: number): boolean {
  const allowed = threshold.kind === 'bytes' ? threshold.bytes : (a * threshold.percent) / 100;
  return b - a > allowed;
}

export function thresholdText(threshold: Threshold): string {
  return threshold.kind === 'bytes' ? formatBytes(threshold.bytes) : `${threshold.percent} %`;
}
