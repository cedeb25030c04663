// A whole trace in memory: tables, one set of columns for all events, and the rare events as objects.

import type { EventOf, Fields, SidecarEvent } from '../protocol/events.ts';
import type { TraceFooter, TraceHeader } from './file_format.ts';

/** One frame of the calling-context tree. `file` and `function` are string ids. Index 0 is the empty stack. */
export interface StackTable {
  readonly parent: Uint32Array;
  readonly file: Uint32Array;
  readonly function: Uint32Array;
  readonly line: Uint32Array;
}

export interface TensorMeta {
  /** Without the `torch.` prefix: `bfloat16`. */
  readonly dtype: string;
  readonly layout: string;
  readonly shape: readonly number[];
}

export interface ModuleMeta {
  readonly id: number;
  readonly parent: number;
  /** Fully qualified name, as named_modules() gives it; the root is ''. */
  readonly name: string;
  readonly className: string;
}

export interface DeviceMeta {
  readonly id: number;
  readonly type: string;
  readonly index: number;
  readonly name: string;
  readonly properties: Fields;
}

export interface PhaseMeta {
  readonly id: number;
  /** Enclosing phase, 0 at the top. */
  readonly parent: number;
  readonly depth: number;
  readonly name: string;
  readonly labels: Fields;
  /** `step[step=1]/forward_backward[micro_batch=0]`: names and labels from the outermost phase in. */
  readonly path: string;
  /** How many phases with the same path began before this one. */
  readonly occurrence: number;
  readonly beginEvent: number;
  /** The event that closes it; the last event of the trace when it was never closed. */
  endEvent: number;
  readonly beginTime: number;
  endTime: number;
  closed: boolean;
}

/**
 * All events that say something about memory, streams or place, in order. Row i is event i.
 *
 * | code | subject | other columns in use |
 * |---|---|---|
 * | alloc | storage | bytes device stream pool op stack module pass tensor |
 * | resize | storage | bytes device stream pool op stack module pass |
 * | free | storage | device |
 * | owner | storage | op: string id of the name; pool: category (protocol OWNERS); device |
 * | record_stream | storage | stream, device |
 * | event_record, event_wait | event | stream |
 * | event_synchronize | event | |
 * | stream_synchronize | | device stream |
 * | device_synchronize | | device |
 * | phase_begin, phase_end | phase | |
 * | module_enter, module_exit | module | pass |
 * | every other | index into `Trace.rare` | |
 *
 * `phase` is the innermost open phase (0: none), set in every row.
 */
export interface EventColumns {
  readonly length: number;
  readonly code: Uint8Array;
  readonly subject: Uint32Array;
  readonly bytes: Float64Array;
  readonly device: Uint8Array;
  readonly stream: Uint32Array;
  readonly pool: Uint32Array;
  readonly op: Uint32Array;
  readonly stack: Uint32Array;
  readonly module: Uint32Array;
  readonly pass: Uint8Array;
  readonly tensor: Uint32Array;
  readonly phase: Uint32Array;
}

export interface TraceIntegrity {
  /** The sidecar's close event came, its count matches, and nothing was damaged or missing. */
  readonly complete: boolean;
  /** Why not, in sentences. */
  readonly faults: readonly string[];
  /** From the close event; null when none came. */
  readonly status: string | null;
}

export interface Trace {
  readonly header: TraceHeader;
  readonly footer: TraceFooter | null;
  readonly integrity: TraceIntegrity;
  /** Index 0 is ''. */
  readonly strings: readonly string[];
  readonly stacks: StackTable;
  /** Index 0 is unused. */
  readonly tensors: readonly (TensorMeta | undefined)[];
  readonly modules: readonly (ModuleMeta | undefined)[];
  /** By id. */
  readonly devices: readonly (DeviceMeta | undefined)[];
  /** By id; index 0 is unused. */
  readonly phases: readonly (PhaseMeta | undefined)[];
  /** Number of storages + 1: arrays indexed by storage id have this length. */
  readonly storageCount: number;
  readonly events: EventColumns;
  /** Events that are not on the hot path, as objects; `events.subject` points here. */
  readonly rare: readonly SidecarEvent[];
  readonly uncovered: readonly EventOf<'uncovered'>[];
  readonly errors: readonly EventOf<'error'>[];
  readonly logs: readonly EventOf<'log'>[];
  /** Facts of the run by topic. */
  readonly run: ReadonlyMap<string, Fields>;
  readonly closeCounts: Fields | null;
}

/** Frames of a stack, innermost first. */
export function framesOf(
  trace: Trace,
  stack: number,
): { file: string; function: string; line: number }[] {
  const frames = [];
  for (let node = stack; node !== 0; node = trace.stacks.parent[node]) {
    frames.push({
      file: trace.strings[trace.stacks.file[node]],
      function: trace.strings[trace.stacks.function[node]],
      line: trace.stacks.line[node],
    });
  }
  return frames;
}

/** The value of a phase's label or of the nearest enclosing phase that has it. */
export function labelOf(trace: Trace, phase: number, label: string): number | string | undefined {
  for (let id = phase; id !== 0; ) {
    const meta = trace.phases[id];
    if (meta === undefined) return undefined;
    const value = meta.labels[label];
    if (typeof value === 'number' || typeof value === 'string') return value;
    id = meta.parent;
  }
  return undefined;
}
