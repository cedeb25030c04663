// A captured run as a measured run: the snapshot's history, with phases, owners and readings of the driver put where they belong.

import { createHash } from 'node:crypto';
import { UserError } from '../../base/errors.ts';
import { type Fields, OWNERS, type Owner } from '../../protocol/events.ts';
import type { TraceHeader } from '../../trace/file_format.ts';
import { type History, readHistory } from '../history/history.ts';
import type { Mark } from '../history_trace.ts';
import type { MeasuredInput } from '../input.ts';
import { type MeasuredRun, measuredRun } from '../measured_run.ts';
import { ActionCode } from '../snapshot/snapshot.ts';
import { readSnapshot } from '../snapshot/snapshot_reader.ts';
import { openCapture } from './capture_file.ts';
import type { CaptureHeader, CaptureReading } from './capture_schema.ts';

const A = ActionCode;

export interface CapturedRun extends MeasuredRun {
  readonly capture: CaptureHeader;
}

/** @throws UserError of the file, the snapshot or the history, or `CAPTURE_POSITION`. */
export async function readCaptureRun(input: MeasuredInput): Promise<CapturedRun> {
  const { header, snapshot: rest } = await openCapture(input);
  const snapshot = await readSnapshot(rest);
  const history = readHistory(snapshot, header.device, {
    // Without a limit nothing can have been lost, however round the number of entries is.
    maxEntries: header.history.max_entries ?? Number.POSITIVE_INFINITY,
  });
  const run = measuredRun({
    format: 'capture',
    path: input.path,
    history,
    header: traceHeader(input.path, header),
    device: {
      index: header.device,
      name: header.gpu.name,
      properties: { total_memory: header.gpu.total_memory },
    },
    marks: marksOf(header, history),
    facts: factsOf(header),
    capacity: header.gpu.total_memory,
    notes: notesOf(header),
  });
  return { ...run, capture: header };
}

/** Readings and marks in the order of the history. @throws UserError `CAPTURE_POSITION`. */
function marksOf(header: CaptureHeader, history: History): Mark[] {
  const marks: Mark[] = [];
  const position = new Position(history);
  for (const mark of header.marks) {
    const row = mark.reading === null ? 0 : position.of(mark.reading);
    const reading = mark.reading === null ? undefined : externalMark(mark.reading, row);
    if (mark.kind === 'end') {
      for (const [address, category, name] of mark.owners) {
        marks.push({ kind: 'owner', row, address, ...ownerOf(category, name) });
      }
    }
    if (reading !== undefined) marks.push(reading);
    if (mark.kind === 'begin') {
      marks.push({ kind: 'begin', row, name: mark.name, labels: mark.labels, time: mark.time });
    } else {
      marks.push({ kind: 'end', row, time: mark.time, failed: mark.exception !== null });
    }
  }
  return marks;
}

/** Storages of several categories are one owner, told by its name. */
function ownerOf(category: string, name: string): { owner: Owner; name: string } {
  const owner = OWNERS.find((known) => known === category);
  return owner === undefined ? { owner: 'other', name: `${category}: ${name}` } : { owner, name };
}

/** Outside the allocator = used on the device − reserved by this process. Other processes on the device are in it. */
function externalMark(reading: CaptureReading, row: number): Mark | undefined {
  const { driver_free: free, driver_total: total, reserved } = reading;
  if (free === null || total === null || total - free < reserved) return undefined;
  const detail: Record<string, number> = { driver_used: total - free };
  if (reading.process_used !== null) detail.process_used = reading.process_used;
  if (reading.device_used !== null) detail.device_used = reading.device_used;
  return { kind: 'external', row, bytes: total - free - reserved, detail };
}

/**
 * Where in the history a reading was taken: where as many calls have been served as the allocator's counters said. No clock
 * is involved.
 */
class Position {
  readonly #action: Uint8Array;
  readonly #size: Float64Array;
  #row = 0;
  #allocs = 0;
  #frees = 0;
  #completed = 0;
  #reserved: number;

  constructor(history: History) {
    const { entries } = history.snapshot;
    const last = history.first + history.count;
    this.#action = entries.action.view().subarray(history.first, last);
    this.#size = entries.size.view().subarray(history.first, last);
    this.#reserved = history.reservedAtStart;
  }

  /** Readings must come in order. */
  of(reading: CaptureReading): number {
    while (
      this.#row < this.#action.length &&
      (this.#allocs < reading.allocs ||
        this.#frees < reading.frees ||
        this.#completed < reading.frees_completed)
    ) {
      this.#step();
    }
    // Segments that were given back or mapped since the last call count in `reserved` alone.
    while (
      this.#row < this.#action.length &&
      this.#reserved !== reading.reserved &&
      isSegment(this.#action[this.#row])
    ) {
      this.#step();
    }
    if (
      this.#allocs !== reading.allocs ||
      this.#frees !== reading.frees ||
      this.#completed !== reading.frees_completed ||
      this.#reserved !== reading.reserved
    ) {
      throw new UserError(
        'CAPTURE_POSITION',
        `a phase boundary after ${reading.allocs} allocations and ${reading.frees} frees with ${reading.reserved} bytes reserved is not in the history ` +
          `(entry ${this.#row} has ${this.#allocs}, ${this.#frees} and ${this.#reserved}). The history lost entries, or the counters were reset by the job ` +
          '(reset_accumulated_memory_stats).',
      );
    }
    return this.#row;
  }

  #step(): void {
    const row = this.#row++;
    switch (this.#action[row]) {
      case A.alloc:
        this.#allocs++;
        return;
      case A.free_requested:
        this.#frees++;
        return;
      case A.free_completed:
        this.#completed++;
        return;
      case A.segment_alloc:
      case A.segment_map:
        this.#reserved += this.#size[row];
        return;
      case A.segment_free:
      case A.segment_unmap:
        this.#reserved -= this.#size[row];
        return;
    }
  }
}

function isSegment(action: number): boolean {
  return (
    action === A.segment_alloc ||
    action === A.segment_free ||
    action === A.segment_map ||
    action === A.segment_unmap ||
    action === A.snapshot
  );
}

function traceHeader(path: string, header: CaptureHeader): TraceHeader {
  const steps = header.marks.filter((mark) => mark.kind === 'begin' && mark.name === 'step').length;
  return {
    created: header.created,
    memtracker: header.memtracker,
    run: createHash('sha256')
      .update(`${path} ${header.created} ${header.rank}`)
      .digest('hex')
      .slice(0, 16),
    framework: header.framework,
    checkout: null,
    argv: header.argv,
    world: header.world,
    rank: header.rank,
    gpus_per_node: header.gpus_per_node,
    gpu: { id: header.gpu.name, ...header.gpu },
    steps: Math.max(1, steps),
    options: {},
    source: {},
    environment: header.environment,
    origin: 'measured',
  };
}

function factsOf(header: CaptureHeader): ReadonlyMap<string, Fields> {
  return new Map<string, Fields>([
    ['versions', header.versions],
    ['capture', { purpose: header.purpose, ended: header.ended.how, device: header.device }],
  ]);
}

function notesOf(header: CaptureHeader): string[] {
  const notes: string[] = [];
  const { ended, disturbed_by: disturbed, facts } = header;
  if (ended.how !== 'done') {
    notes.push(`The run ended by ${ended.how.replaceAll('_', ' ')}: ${ended.error.slice(0, 300)}`);
  }
  if (disturbed.length > 0) {
    notes.push(
      `Measured with ${disturbed.join(', ')} at each phase boundary: an undisturbed run differs.`,
    );
  }
  if (typeof facts.labels === 'string') notes.push(facts.labels);
  notes.push(
    'Memory outside the allocator is device-wide (driver used − reserved) and known at phase boundaries only.',
  );
  return notes;
}
