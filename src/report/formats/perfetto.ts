// Chrome trace JSON for ui.perfetto.dev and chrome://tracing: phases as slices, kinds of memory as counters. One process a rank.
// Format: "Trace Event Format" (Google, the catapult project's document); duration events B and E, counters C, metadata M.

import type { Analysis, DeviceAnalysis } from '../../attribution/analysis.ts';
import { decimatedEvents } from '../../timeline/decimate.ts';
import { eventTimes } from '../../timeline/event_times.ts';
import type { ExportFormat } from './format.ts';

/** Points of each counter: ten times what a screen shows, small enough for a browser. */
const COUNTER_BUCKETS = 20_000;

export const perfetto: ExportFormat = {
  name: 'perfetto',
  extension: 'json',
  description: 'Chrome trace JSON: ui.perfetto.dev, chrome://tracing',
  *write(analysis, device) {
    yield '{"displayTimeUnit":"ms","otherData":';
    yield JSON.stringify({
      producer: 'memtracker',
      predicted: analysis.trace.header.origin !== 'measured',
      time: 'of the tracing process, not of a GPU',
    });
    yield ',"traceEvents":[\n';
    let first = true;
    for (const event of traceEvents(analysis, device)) {
      yield `${first ? '' : ',\n'}${JSON.stringify(event)}`;
      first = false;
    }
    yield '\n]}\n';
  },
};

type TraceEvent = Readonly<Record<string, unknown>>;

function* traceEvents({ trace }: Analysis, device: DeviceAnalysis): Generator<TraceEvent> {
  const { timeline } = device;
  const { header } = trace;
  const times = eventTimes(trace);
  const at = (event: number) => Math.round(times[event] * 1000) / 1000;
  const pid = header.rank;
  yield {
    ph: 'M',
    pid,
    name: 'process_name',
    args: { name: `rank ${header.rank} of ${header.world} (${header.framework})` },
  };
  yield { ph: 'M', pid, tid: 0, name: 'thread_name', args: { name: 'phases' } };

  // B and E must nest in file order: by event, ends before begins never happen at one event.
  const edges: { event: number; value: TraceEvent }[] = [];
  for (const { phase, peaks } of timeline.phases) {
    edges.push({
      event: phase.beginEvent,
      value: {
        ph: 'B',
        pid,
        tid: 0,
        ts: at(phase.beginEvent),
        name: phase.path.slice(trace.phases[phase.parent]?.path.length ?? 0).replace(/^\//, ''),
        args: { ...phase.labels, peak_allocated_bytes: peaks.allocated.bytes },
      },
    });
    edges.push({
      event: phase.endEvent,
      value: { ph: 'E', pid, tid: 0, ts: at(Math.min(phase.endEvent, times.length - 1)) },
    });
  }
  edges.sort((a, b) => a.event - b.event);
  for (const { value } of edges) yield value;

  const { requested, allocated, active, reserved, external } = timeline.series;
  for (const event of decimatedEvents(timeline, COUNTER_BUCKETS)) {
    const known = Number.isNaN(external[event]) ? {} : { external: external[event] };
    yield {
      ph: 'C',
      pid,
      ts: at(event),
      name: `${device.name} bytes`,
      args: {
        requested: requested[event],
        allocated: allocated[event],
        active: active[event],
        reserved: reserved[event],
        ...known,
      },
    };
  }
}
