import { expect, test } from 'vitest';
import { syntheticTrace } from '../../tests/traces/synthetic.ts';
import { deviceForTrace } from '../device/trace_device.ts';
import { decimatedEvents } from './decimate.ts';
import { eventTimes } from './event_times.ts';
import { replay } from './replay.ts';

const trace = syntheticTrace({ layers: 16, temporaries: 20 });
const timeline = replay(trace, 0, deviceForTrace(trace.header).device);

test('a handful of events keeps every exact peak', () => {
  const chosen = decimatedEvents(timeline, 50);
  expect(chosen.length).toBeLessThan(timeline.length / 4);
  for (const kind of ['allocated', 'active', 'reserved'] as const) {
    const series = timeline.series[kind];
    expect(Math.max(...Array.from(chosen, (event) => series[event]))).toBe(
      timeline.peaks[kind].bytes,
    );
  }
  expect([...chosen]).toEqual([...chosen].sort((a, b) => a - b));
});

test('a window has the extremes of the window', () => {
  const [from, to] = [1000, 1800];
  const chosen = decimatedEvents(timeline, 10, from, to);
  const window = timeline.series.allocated.subarray(from, to + 1);
  const values = Array.from(chosen, (event) => timeline.series.allocated[event]);
  expect(Math.min(...values)).toBe(Math.min(...window));
  expect(Math.max(...values)).toBe(Math.max(...window));
});

test('few events are all kept, none is nothing', () => {
  expect([...decimatedEvents(timeline, 50, 10, 14)]).toEqual([10, 11, 12, 13, 14]);
  expect([...decimatedEvents(timeline, 50, 5, 4)]).toEqual([]);
});

test('times never fall and meet those of the phases', () => {
  const times = eventTimes(trace);
  expect(times.every((time, i) => i === 0 || time >= times[i - 1])).toBe(true);
  for (const phase of trace.phases) {
    if (phase === undefined) continue;
    expect(times[phase.beginEvent]).toBe(phase.beginTime);
    expect(times[phase.endEvent]).toBe(phase.endTime);
  }
});
