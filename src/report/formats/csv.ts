// CSV (RFC 4180) of one table: the timeline event by event, the phases, the tensors at a peak, or every allocation of the run.
// Sizes are bytes; a size that is not known is empty.

import type { Analysis, DeviceAnalysis } from '../../attribution/analysis.ts';
import { callSite, frameText } from '../../attribution/frames.ts';
import { NEVER } from '../../attribution/lifetimes.ts';
import { ModuleNames } from '../../attribution/module_name.ts';
import { phaseTitle } from '../../attribution/phase_title.ts';
import { type TensorRow, tensorRows } from '../../attribution/tensors.ts';
import { eventNameOf, PASSES } from '../../protocol/events.ts';
import { MEMORY_KINDS, type MemoryKind } from '../../timeline/timeline.ts';
import type { CsvTable, ExportFormat } from './format.ts';

type Cell = string | number | null;
type Row = readonly Cell[];

const TABLES: Readonly<
  Record<
    CsvTable,
    (analysis: Analysis, device: DeviceAnalysis, at: MemoryKind | number) => Iterable<Row>
  >
> = { timeline: timelineRows, phases: phaseRows, tensors: tensorTable, allocations };

export const csv: ExportFormat = {
  name: 'csv',
  extension: 'csv',
  description: 'a table (--table timeline, phases, tensors, allocations): any spreadsheet',
  *write(analysis, device, { at, table }) {
    for (const row of TABLES[table](analysis, device, at))
      yield `${row.map(cellText).join(',')}\r\n`;
  },
};

function cellText(cell: Cell): string {
  if (cell === null || Number.isNaN(cell)) return '';
  const text = String(cell);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function* timelineRows({ trace }: Analysis, { timeline }: DeviceAnalysis): Generator<Row> {
  yield ['event', 'name', 'phase', 'requested', 'allocated', 'active', 'reserved', 'external'];
  const { requested, allocated, active, reserved, external } = timeline.series;
  for (let i = 0; i < timeline.length; i++) {
    yield [
      i,
      eventNameOf(trace.events.code[i]) ?? '',
      phaseTitle(trace.phases[trace.events.phase[i]]),
      requested[i],
      allocated[i],
      active[i],
      reserved[i],
      external[i],
    ];
  }
}

function* phaseRows(_analysis: Analysis, { timeline }: DeviceAnalysis): Generator<Row> {
  const columns = (prefix: string) => MEMORY_KINDS.map((kind) => `${prefix}_${kind}`);
  yield [
    'phase',
    'depth',
    'begin_event',
    'end_event',
    ...columns('before'),
    ...columns('after'),
    ...columns('peak'),
    ...columns('peak_event'),
  ];
  for (const { phase, before, after, peaks } of timeline.phases) {
    yield [
      phaseTitle(phase),
      phase.depth,
      phase.beginEvent,
      phase.endEvent,
      ...MEMORY_KINDS.map((kind) => before[kind]),
      ...MEMORY_KINDS.map((kind) => after[kind]),
      ...MEMORY_KINDS.map((kind) => peaks[kind].bytes),
      ...MEMORY_KINDS.map((kind) => peaks[kind].event),
    ];
  }
}

function* tensorTable(
  { trace }: Analysis,
  device: DeviceAnalysis,
  at: MemoryKind | number,
): Generator<Row> {
  const attribution =
    typeof at === 'number' ? device.attributionAt(at) : device.attributionAtPeak(at);
  yield [
    'storage',
    'bytes',
    'block_bytes',
    'dtype',
    'shape',
    'layout',
    'owner',
    'owner_name',
    'module',
    'pass',
    'operator',
    'call_site',
    'stream',
    'phase_born',
    'event_born',
    'event_died',
  ];
  const rows: TensorRow[] = tensorRows(device.timeline, attribution, device.lifetimes());
  for (const row of rows) {
    yield [
      row.storage,
      row.bytes,
      row.blockBytes,
      row.dtype,
      row.shape === null ? null : row.shape.join('x'),
      row.layout,
      row.owner,
      row.ownerName,
      row.module,
      row.pass,
      row.op,
      frameText(callSite(trace, row.stack)),
      row.stream,
      phaseTitle(row.born),
      row.event,
      row.diedAtEvent,
    ];
  }
}

function* allocations({ trace }: Analysis, device: DeviceAnalysis): Generator<Row> {
  const { timeline } = device;
  const { events, strings, phases } = trace;
  const names = new ModuleNames(trace);
  const { diedAt } = device.lifetimes();
  yield [
    'event',
    'storage',
    'bytes',
    'block_bytes',
    'stream',
    'operator',
    'module',
    'pass',
    'phase',
    'call_site',
    'event_died',
  ];
  for (let i = 0; i < timeline.length; i++) {
    if (diedAt[i] === 0 || timeline.blockBytes[i] === 0) continue;
    yield [
      i,
      events.subject[i],
      events.bytes[i],
      timeline.blockBytes[i],
      events.stream[i],
      strings[events.op[i]],
      names.of(events.module[i]),
      PASSES[events.pass[i]] ?? 'none',
      phaseTitle(phases[events.phase[i]]),
      frameText(callSite(trace, events.stack[i])),
      diedAt[i] === NEVER ? null : diedAt[i],
    ];
  }
}
