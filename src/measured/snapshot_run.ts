// A snapshot file by itself, as a measured run: what torch wrote and nothing else. Phases come from what the snapshot holds:
// annotations (`global_record_annotations`), or the texts of `torch.cuda.memory._set_memory_metadata`.

import { createHash } from 'node:crypto';
import { stat } from 'node:fs/promises';
import type { Fields } from '../protocol/events.ts';
import type { TraceHeader } from '../trace/file_format.ts';
import { type HistoryOptions, readHistory } from './history/history.ts';
import type { Mark } from './history_trace.ts';
import type { MeasuredInput } from './input.ts';
import { type MeasuredRun, measuredRun } from './measured_run.ts';
import { ActionCode, type MemorySnapshot } from './snapshot/snapshot.ts';
import { readSnapshot } from './snapshot/snapshot_reader.ts';

export interface SnapshotRunOptions extends HistoryOptions {
  /** Device index; the first one with a history (or segments) when absent. */
  readonly device?: number;
}

/** @throws UserError of the reader (PICKLE_*, SNAPSHOT_*, MEASURED_*) or of the history (HISTORY_*). */
export async function readSnapshotRun(
  input: MeasuredInput,
  options: SnapshotRunOptions = {},
): Promise<MeasuredRun> {
  const snapshot = await readSnapshot(input);
  const device = options.device ?? usedDevice(snapshot);
  const history = readHistory(snapshot, device, options);
  return measuredRun({
    format: 'snapshot',
    path: input.path,
    history,
    header: await snapshotHeader(input),
    device: { index: device, name: '', properties: {} },
    marks: marksOfSnapshot(snapshot, device),
    facts: new Map([
      [
        'snapshot',
        {
          entries: history.count,
          segments: snapshot.segments.length,
          alloc_conf: String(snapshot.allocatorSettings.PYTORCH_CUDA_ALLOC_CONF ?? ''),
        },
      ],
    ]),
  });
}

/** The device whose history is longest; without any, that of the first segment; else 0. */
export function usedDevice(snapshot: MemorySnapshot): number {
  const longest = [...snapshot.deviceTraces].sort((a, b) => b.count - a.count)[0];
  if (longest !== undefined && longest.count > 0) return longest.device;
  return snapshot.segments[0]?.device ?? 0;
}

/** Phases that the snapshot itself marks, innermost spans properly nested. */
export function marksOfSnapshot(snapshot: MemorySnapshot, device: number): Mark[] {
  const annotations = snapshot.annotations.filter((item) => item.device === device);
  return annotations.length > 0
    ? annotationMarks(snapshot, device)
    : metadataMarks(snapshot, device);
}

function annotationMarks(snapshot: MemorySnapshot, device: number): Mark[] {
  const trace = snapshot.deviceTraces[device];
  const time = snapshot.entries.time.view().subarray(trace.first, trace.first + trace.count);
  const marks: Mark[] = [];
  const open: string[] = [];
  const inOrder = snapshot.annotations
    .filter((item) => item.device === device)
    .sort((a, b) => a.time - b.time);
  let row = 0;
  for (const { stage, name, time: at } of inOrder) {
    while (row < time.length && time[row] < at) row++;
    if (stage === 'START') {
      open.push(name);
      marks.push({ kind: 'begin', row, ...phaseOf(name), time: at });
    } else if (open.at(-1) === name) {
      // An end that does not close the innermost span would tear the nesting: it is left out.
      open.pop();
      marks.push({ kind: 'end', row, time: at });
    }
  }
  return marks;
}

/** A run of entries with one metadata text is one span. */
function metadataMarks(snapshot: MemorySnapshot, device: number): Mark[] {
  const { entries } = snapshot;
  const trace = snapshot.deviceTraces[device];
  if (trace === undefined || entries.texts.length <= 1) return [];
  const last = trace.first + trace.count;
  const metadata = entries.userMetadata.view().subarray(trace.first, last);
  const action = entries.action.view().subarray(trace.first, last);
  const time = entries.time.view().subarray(trace.first, last);
  const marks: Mark[] = [];
  let current = 0;
  for (let row = 0; row < metadata.length; row++) {
    // Completion of a free carries no text of its own.
    if (metadata[row] === current || action[row] === ActionCode.free_completed) continue;
    if (current !== 0) marks.push({ kind: 'end', row, time: time[row] });
    current = metadata[row];
    if (current !== 0) {
      const name = entries.texts.text(current);
      marks.push({ kind: 'begin', row, ...phaseOf(name), time: time[row] });
    }
  }
  return marks;
}

/** `forward[micro_batch=0]`, as traces write a phase, back into its name and labels; any other text is a name. */
function phaseOf(text: string): { name: string; labels: Fields } {
  const parts = /^(.*?)\[(\w+=.*)\]$/s.exec(text);
  if (parts === null) return { name: text, labels: {} };
  const labels: Record<string, string | number> = {};
  for (const pair of parts[2].split(/,(?=\w+=)/)) {
    const at = pair.indexOf('=');
    const value = pair.slice(at + 1);
    labels[pair.slice(0, at)] = /^-?\d+$/.test(value) ? Number(value) : value;
  }
  return { name: parts[1], labels };
}

async function snapshotHeader(input: MeasuredInput): Promise<TraceHeader> {
  const { mtime } = await stat(input.path);
  return {
    created: mtime.toISOString(),
    memtracker: '0.1.0',
    run: createHash('sha256').update(input.path).digest('hex').slice(0, 16),
    framework: 'snapshot',
    checkout: null,
    argv: [],
    world: 1,
    rank: 0,
    gpus_per_node: 1,
    gpu: UNKNOWN_GPU,
    steps: 1,
    options: {},
    source: {},
    environment: {},
    origin: 'measured',
  };
}

/** A snapshot does not say on which GPU it was taken. The size is the largest that fits the field, so that nothing is called full. */
export const UNKNOWN_GPU: TraceHeader['gpu'] = {
  id: 'unknown',
  name: 'unknown GPU',
  capability: [0, 0],
  total_memory: Number.MAX_SAFE_INTEGER,
  multi_processor_count: 1,
};
