// A figure that is not known exactly: a lower bound, the best figure, an upper bound.

/** Bytes, usually. `low <= likely <= high`. */
export interface Band {
  readonly low: number;
  readonly likely: number;
  readonly high: number;
}

export const NO_BAND: Band = { low: 0, likely: 0, high: 0 };

/** A figure known exactly. */
export function exactly(value: number): Band {
  return { low: value, likely: value, high: value };
}

/** @throws RangeError if the three are not in order or one of them is negative or not finite. */
export function band(low: number, likely: number, high: number): Band {
  if (!(0 <= low && low <= likely && likely <= high && Number.isFinite(high))) {
    throw new RangeError(`${low} <= ${likely} <= ${high} does not hold`);
  }
  return { low, likely, high };
}

export function addBands(a: Band, b: Band): Band {
  return { low: a.low + b.low, likely: a.likely + b.likely, high: a.high + b.high };
}

export function sumBands(bands: Iterable<Band>): Band {
  let sum = NO_BAND;
  for (const item of bands) sum = addBands(sum, item);
  return sum;
}
