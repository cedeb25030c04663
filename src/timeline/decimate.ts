// Fewer points with the same outline: for drawing a timeline of a million events on a thousand pixels, or writing it as counters.

import type { Timeline } from './timeline.ts';

/**
 * Events, in order, that stand for a stretch of the timeline. Of each of `buckets` equal parts of [from, to] the first and last
 * event are taken and those where allocated, active, reserved and external are smallest and largest: every extreme of a bucket is exact,
 * the peaks of the stretch included. All events when there are not more than that.
 */
export function decimatedEvents(
  timeline: Timeline,
  buckets: number,
  from = 0,
  to = timeline.length - 1,
): Uint32Array {
  const count = to - from + 1;
  if (count <= 0) return new Uint32Array(0);
  const { allocated, active, reserved, external } = timeline.series;
  const series = [allocated, active, reserved, external];
  if (count <= buckets * 2) return Uint32Array.from({ length: count }, (_, i) => from + i);
  const chosen: number[] = [];
  for (let bucket = 0; bucket < buckets; bucket++) {
    const first = from + Math.floor((bucket * count) / buckets);
    const last = from + Math.floor(((bucket + 1) * count) / buckets) - 1;
    const inBucket = [first, last];
    for (const values of series) {
      let low = first;
      let high = first;
      for (let i = first + 1; i <= last; i++) {
        if (values[i] < values[low]) low = i;
        if (values[i] > values[high]) high = i;
      }
      inBucket.push(low, high);
    }
    // The resident peak need not be a peak of its parts.
    let resident = first;
    for (let i = first + 1; i <= last; i++) {
      if (reserved[i] + external[i] > reserved[resident] + external[resident]) resident = i;
    }
    inBucket.push(resident);
    inBucket.sort((a, b) => a - b);
    for (const event of inBucket) if (chosen.at(-1) !== event) chosen.push(event);
  }
  return Uint32Array.from(chosen);
}
