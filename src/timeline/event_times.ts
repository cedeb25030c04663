// When each event happened. Only phases carry a time; events in between are spread evenly. Times of a predicted run are those
// of the tracing process, not of the GPU: they order and group, they do not measure.

import { EVENTS } from '../protocol/events.ts';
import type { Trace } from '../trace/trace.ts';

const BEGIN = EVENTS.phase_begin.code;
const END = EVENTS.phase_end.code;

/** Microseconds since the start of the run, by event; never falling. */
export function eventTimes(trace: Trace): Float64Array {
  const { events, phases } = trace;
  const times = new Float64Array(events.length);
  let lastEvent = -1;
  let lastTime = 0;
  const knownAt = (event: number, time: number) => {
    const at = Math.max(time, lastTime);
    for (let i = lastEvent + 1; i <= event; i++) {
      times[i] = lastTime + ((at - lastTime) * (i - lastEvent)) / (event - lastEvent);
    }
    lastEvent = event;
    lastTime = at;
  };
  for (let i = 0; i < events.length; i++) {
    const phase = phases[events.subject[i]];
    if (events.code[i] === BEGIN && phase !== undefined) knownAt(i, phase.beginTime);
    else if (events.code[i] === END && phase?.closed === true) knownAt(i, phase.endTime);
  }
  // After the last phase there is no clock: a microsecond an event.
  for (let i = lastEvent + 1; i < events.length; i++) times[i] = lastTime + (i - lastEvent);
  return times;
}
