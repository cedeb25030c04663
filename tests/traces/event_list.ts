// Traces written event by event, for tests that are about one rule. Identifiers are what the test says.

import { encodeBatch, toTuple } from '../../src/protocol/codec.ts';
import type { EventOf, EventTuple, SidecarEvent } from '../../src/protocol/events.ts';
import { TraceBuilder } from '../../src/trace/builder.ts';
import type { TraceFooter, TraceHeader } from '../../src/trace/file_format.ts';
import type { Trace } from '../../src/trace/trace.ts';
import { TraceWriter } from '../../src/trace/writer.ts';
import { SMALL_JOB, syntheticHeader } from './synthetic.ts';

export const HEADER: TraceHeader = syntheticHeader({ ...SMALL_JOB, world: 1 });

export const FOOTER: TraceFooter = {
  status: 'done',
  exit_code: 0,
  signal: null,
  batches: 0,
  events: 0,
  faults: [],
  stderr_tail: '',
  wall_seconds: 0,
  worker_peak_rss: null,
};

export const cuda = (id = 1): SidecarEvent => ({
  type: 'device',
  id,
  kind: 'cuda',
  index: 0,
  name: 'NVIDIA H100 80GB HBM3',
  properties: {},
});

export const cpu = (id = 2): SidecarEvent => ({
  type: 'device',
  id,
  kind: 'cpu',
  index: 0,
  name: 'cpu',
  properties: {},
});

/** On device 1 and the default stream unless `rest` says otherwise. */
export const alloc = (
  storage: number,
  bytes: number,
  rest: Partial<EventOf<'alloc'>> = {},
): SidecarEvent => ({
  type: 'alloc',
  storage,
  bytes,
  device: 1,
  stream: 0,
  pool: 0,
  op: 0,
  stack: 0,
  module: 0,
  pass: 0,
  tensor: 0,
  ...rest,
});

export const free = (storage: number): SidecarEvent => ({ type: 'free', storage });

export const resize = (storage: number, bytes: number): SidecarEvent => ({
  type: 'resize',
  storage,
  bytes,
  stream: 0,
  pool: 0,
  op: 0,
  stack: 0,
  module: 0,
  pass: 0,
});

export const begin = (
  phase: number,
  name: string,
  labels: EventOf<'phase_begin'>['labels'] = {},
  time = 0,
): SidecarEvent => ({ type: 'phase_begin', phase, name, labels, time });

export const end = (phase: number, time = 0): SidecarEvent => ({ type: 'phase_end', phase, time });

/** The close event of a run that sent `events` before it. */
export const close = (events: number, status = 'done'): SidecarEvent => ({
  type: 'close',
  status,
  events: events + 1,
  counts: {},
});

/** A trace of these events, with the close event that belongs to them. */
export function traceOf(events: readonly SidecarEvent[]): Trace {
  return builtFrom([...events, close(events.length)]);
}

/** A trace of exactly these events. */
export function builtFrom(events: readonly SidecarEvent[]): Trace {
  const builder = new TraceBuilder(HEADER);
  for (const event of events) builder.push(toTuple(event));
  return builder.finish(FOOTER);
}

/** A trace file with one batch for each list of events; `sequence` numbers them, 0, 1, … when absent. */
export async function writeBatches(
  path: string,
  batches: readonly (readonly SidecarEvent[])[],
  sequence: readonly number[] = batches.map((_, i) => i),
): Promise<void> {
  const writer = await TraceWriter.create(path, HEADER);
  for (const [i, batch] of batches.entries()) {
    const events: EventTuple[] = batch.map(toTuple);
    await writer.batch(encodeBatch({ run: HEADER.run, sequence: sequence[i], events }));
  }
  await writer.close(FOOTER);
}
