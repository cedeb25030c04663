// A measured run: one rank's recording, on the same timeline as an estimate.
//
// The timeline comes out of the same replay as an estimate's, driven through a device that plays the recording back. What
// could not be measured exactly is NaN there ("unknown"), and its bounds stand beside it in `uncertain`.

import type { Fields } from '../protocol/events.ts';
import { replay } from '../timeline/replay.ts';
import type { MemoryKind, Peak, Peaks, Timeline } from '../timeline/timeline.ts';
import type { TraceHeader } from '../trace/file_format.ts';
import type { Trace } from '../trace/trace.ts';
import type { History } from './history/history.ts';
import { HistoryCursor } from './history/history_cursor.ts';
import { type DeviceFacts, type Mark, traceOfHistory } from './history_trace.ts';
import { RecordedDevice, type RecordedSteps } from './recorded_device.ts';

export interface MeasuredRun {
  /** `snapshot` (torch's own dump) or `capture` (memtracker capture). */
  readonly format: string;
  readonly path: string;
  readonly trace: Trace;
  readonly deviceId: number;
  readonly history: History;
  readonly steps: RecordedSteps;
  readonly timeline: Timeline;
  /** Phases (by id) that an out-of-memory error ended or happened in: what stands there is a lower bound, never a peak. */
  readonly censored: ReadonlySet<number>;
  /** Bytes of the device; undefined when the recording does not say. */
  readonly capacity: number | undefined;
  /** What a reader should know: how sizes were obtained, what is not known. Sentences. */
  readonly notes: readonly string[];
}

export interface RunParts {
  readonly format: string;
  readonly path: string;
  readonly history: History;
  readonly header: TraceHeader;
  readonly device: DeviceFacts;
  readonly marks: readonly Mark[];
  readonly facts?: ReadonlyMap<string, Fields>;
  readonly capacity?: number;
  readonly notes?: readonly string[];
}

export function measuredRun(parts: RunParts): MeasuredRun {
  const { history } = parts;
  const { trace, deviceId, steps, censored } = traceOfHistory(
    history,
    parts.header,
    parts.device,
    parts.marks,
    parts.facts,
  );
  const played = replay(trace, deviceId, new RecordedDevice(history, steps));
  return {
    format: parts.format,
    path: parts.path,
    trace,
    deviceId,
    history,
    steps,
    timeline: withoutPartialPeaks(played, history.boundedBlocks > 0),
    censored,
    capacity: parts.capacity,
    notes: [...historyNotes(history), ...(parts.notes ?? [])],
  };
}

/** A replay on a fresh device, for those who want to change the replay's own options. */
export function replayRecorded(run: MeasuredRun): Timeline {
  return replay(run.trace, run.deviceId, new RecordedDevice(run.history, run.steps));
}

/**
 * A peak over samples of which some are unknown is a partial one: it becomes unknown as well. So it is with resident memory,
 * which is known at the readings of the driver only; external memory keeps the largest reading.
 */
function withoutPartialPeaks(timeline: Timeline, sizesBounded: boolean): Timeline {
  const kinds = ['allocated', 'active'] as const;
  const unknownIn = (from: number, to: number): MemoryKind[] => [
    'resident',
    ...kinds.filter((kind) => {
      if (!sizesBounded) return false;
      const series = timeline.series[kind];
      for (let i = from; i <= to && i < timeline.length; i++)
        if (Number.isNaN(series[i])) return true;
      return false;
    }),
  ];
  const strip = (peaks: Peaks, kindsToStrip: readonly MemoryKind[]): Peaks => {
    const result: Record<string, Peak> = { ...peaks };
    for (const kind of kindsToStrip) result[kind] = { bytes: Number.NaN, event: peaks[kind].event };
    return result as Peaks;
  };
  const unknown: Peak = { bytes: Number.NaN, event: 0 };
  return {
    ...timeline,
    peaks: strip(timeline.peaks, unknownIn(0, timeline.length - 1)),
    residentLow: unknown,
    residentHigh: unknown,
    phases: timeline.phases.map((span) => ({
      ...span,
      peaks: strip(span.peaks, unknownIn(span.phase.beginEvent, span.phase.endEvent)),
    })),
  };
}

/** Bounds of the peak of allocated and active memory, over the whole history. Equal where it is known. */
export function peakBounds(history: History): {
  allocated: { low: number; high: number };
  active: { low: number; high: number };
} {
  const cursor = new HistoryCursor(history);
  const allocated = { low: 0, high: 0 };
  const active = { low: 0, high: 0 };
  const look = (): void => {
    allocated.low = Math.max(allocated.low, cursor.allocatedLow);
    allocated.high = Math.max(allocated.high, cursor.allocatedHigh);
    active.low = Math.max(active.low, cursor.activeLow);
    active.high = Math.max(active.high, cursor.activeHigh);
  };
  history.baselineBlocks.forEach((_, index) => {
    cursor.addBaseline(index);
  });
  look();
  for (let row = 1; row <= history.count; row++) {
    cursor.moveTo(row);
    look();
  }
  return { allocated, active };
}

function historyNotes(history: History): string[] {
  const notes = [...history.notes];
  const { baselineBlocks, baselineSegments, boundedBlocks, count } = history;
  if (count === 0) {
    notes.push('The recording has no history: this is the state at its end, not a peak.');
  } else if (baselineBlocks.length > 0 || baselineSegments.length > 0) {
    notes.push(
      `The history starts mid-run: ${baselineBlocks.length} blocks in ${baselineSegments.length} segments were there before it. Peaks are of the recorded window.`,
    );
  }
  if (boundedBlocks > 0) {
    const { allocated } = peakBounds(history);
    notes.push(
      `The block sizes of ${boundedBlocks} allocations are not known exactly: the peak of allocated lies between ${allocated.low} and ${allocated.high} bytes.`,
    );
  }
  for (const row of history.outOfMemory) {
    notes.push(
      `Out of memory at trace entry ${row.row}: ${row.size} bytes were refused with ${row.deviceFree} free. Phases that were open then are censored.`,
    );
  }
  return notes;
}

/** A lower bound of the device's bytes, from an out-of-memory entry: what was reserved and what was free then. */
export function seenCapacity(history: History): number | undefined {
  const oom = history.outOfMemory.at(-1);
  if (oom === undefined) return undefined;
  const cursor = new HistoryCursor(history);
  cursor.moveTo(oom.row);
  return cursor.reserved + oom.deviceFree;
}
