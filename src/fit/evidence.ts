// From the trace of one role to the evidence that a verdict rests on: the trace is replayed on the variation's device at the lower,
// the likely and the upper figure of what lives outside the allocator.

import { frameText, isLibraryFrame } from '../attribution/frames.ts';
import { DeviceOutOfMemory } from '../device/device.ts';
import type { GpuDevice } from '../device/gpu_device.ts';
import { NEVER_FULL } from '../device/trace_device.ts';
import { EVENTS, OWNERS } from '../protocol/events.ts';
import { liveAt } from '../timeline/live_set.ts';
import { replay } from '../timeline/replay.ts';
import type { OutOfMemory, Timeline } from '../timeline/timeline.ts';
import { framesOf, labelOf, type Trace } from '../trace/trace.ts';
import type { Role } from './roles.ts';
import type { Failure, Missing, RoleEvidence } from './verdict.ts';

/** Which figure of external memory takes room on the device. */
export type Bound = 'low' | 'likely' | 'high';

/** A fresh device for one replay; `capacity` in bytes, NEVER_FULL to see the need instead of the end. */
export type DeviceFactory = (
  trace: Trace,
  deviceId: number,
  bound: Bound,
  capacity: number,
) => GpuDevice;

export interface EvidenceInput {
  readonly role: Role;
  readonly path: string;
  readonly trace: Trace;
  readonly capacity: number;
  readonly margin: number;
  readonly device: DeviceFactory;
  /** Ends the replay after the first optimizer step. */
  readonly firstStepOnly: boolean;
  /** What the caller already knows to be missing (an NCCL version without a table, say). */
  readonly missing: readonly Missing[];
}

export function evidenceOf(input: EvidenceInput): RoleEvidence {
  const { role, path, trace, capacity, margin, device } = input;
  const id = usedGpu(trace);
  if (id === undefined) {
    const faults = trace.integrity.complete ? [] : faultsOf(trace);
    return { ...nothing(role, path), faults: [...faults, 'no tensor was ever made on a GPU'] };
  }
  const until = input.firstStepOnly ? endOfFirstStep(trace) : undefined;
  const wholeRun = input.firstStepOnly && until === undefined;
  const options = until === undefined ? {} : { until };
  const need = replay(trace, id, device(trace, id, 'likely', NEVER_FULL), options);
  const attempt = (bound: Bound, room: number) => {
    try {
      const limited = device(trace, id, bound, room);
      const { outOfMemory, ...rest } = replay(trace, id, limited, options);
      const failure =
        outOfMemory === null ? null : failureOf({ ...rest, outOfMemory }, outOfMemory, room);
      const peak = failure === null ? rest.residentHigh.bytes : Number.NaN;
      return { failure, peak, retries: limited.allocator.stats.numAllocRetries };
    } catch (error) {
      if (!(error instanceof DeviceOutOfMemory)) throw error;
      return { failure: fullFromTheStart(error, room), peak: Number.NaN, retries: 0 };
    }
  };
  const low = attempt('low', capacity);
  const high = attempt('high', capacity - margin);
  return {
    role,
    trace: path,
    residentPeak: {
      low: need.residentLow.bytes,
      likely: need.peaks.resident.bytes,
      high: need.residentHigh.bytes,
    },
    reservedPeak: need.peaks.reserved.bytes,
    allocatedPeak: need.peaks.allocated.bytes,
    peakPhase: phaseAt(trace, need.peaks.resident.event),
    liveMicroBatches: liveMicroBatches(need),
    // A step after the first may be what does not fit.
    low: wholeRun ? null : low.failure,
    high: high.failure,
    upperPeak: high.peak,
    retries: high.retries,
    missing: [...input.missing, ...uncoveredOf(trace)],
    assumptions: [...assumptionsOf(trace), ...(wholeRun ? [WHOLE_RUN] : [])],
    faults: [
      ...(trace.integrity.complete ? [] : faultsOf(trace)),
      ...(wholeRun && low.failure !== null
        ? [
            `out of memory in ${low.failure.phase}, and no phase says whether that is the first step`,
          ]
        : []),
    ],
  };
}

const WHOLE_RUN =
  'scenario first_step: no phase of the run says which step it is, so all of its steps were judged';

/** The first GPU on which a storage was made; undefined when there is none. */
function usedGpu(trace: Trace): number | undefined {
  const { code, bytes, device } = trace.events;
  const used = new Set<number>();
  for (let i = 0; i < code.length; i++) {
    if (code[i] === EVENTS.alloc.code && bytes[i] > 0) used.add(device[i]);
  }
  return trace.devices.find((meta) => meta?.type === 'cuda' && used.has(meta.id))?.id;
}

/** The event that closes the outermost phase of step 1; undefined when no phase says which step it is. */
function endOfFirstStep(trace: Trace): number | undefined {
  return trace.phases.find((phase) => phase?.labels.step === 1)?.endEvent;
}

function nothing(role: Role, path: string): RoleEvidence {
  const unknown = Number.NaN;
  return {
    role,
    trace: path,
    residentPeak: { low: unknown, likely: unknown, high: unknown },
    reservedPeak: 0,
    allocatedPeak: 0,
    peakPhase: '',
    liveMicroBatches: null,
    low: null,
    high: null,
    upperPeak: unknown,
    retries: 0,
    missing: [],
    assumptions: [],
    faults: [],
  };
}

function phaseAt(trace: Trace, event: number): string {
  return trace.phases[trace.events.phase[event]]?.path ?? '';
}

function failureOf(timeline: Timeline, full: OutOfMemory, capacity: number): Failure {
  const { trace } = timeline;
  const { events } = trace;
  const free = capacity - full.instant.resident;
  return {
    kind: full.kind,
    phase: phaseAt(trace, full.event) || '(outside any phase)',
    module: trace.modules[events.module[full.event]]?.name ?? '',
    stack: framesOf(trace, events.stack[full.event])
      .filter((frame) => !isLibraryFrame(frame))
      .map(frameText),
    requestedBytes: full.requestedBytes,
    shortBytes: Math.max(0, full.requestedBytes - Math.max(0, free)),
    message: full.message,
  };
}

/** What stands on the device before the job does anything leaves no room for it. */
function fullFromTheStart(error: DeviceOutOfMemory, capacity: number): Failure {
  return {
    kind: error.kind,
    phase: 'the start, before any tensor',
    module: '',
    stack: [],
    requestedBytes: error.requestedBytes,
    shortBytes: Math.max(0, error.requestedBytes - capacity),
    message: error.message,
  };
}

/** Stands for the pipeline stage of a job without a pipeline. */
const WHOLE = 'whole';

/**
 * Micro-batches (of every pipeline chunk) whose activations are alive where `allocated` peaks. Crumbs do not count: position
 * ids and masks of all micro-batches are often made, and kept, at once.
 */
function liveMicroBatches(timeline: Timeline): number | null {
  const { trace } = timeline;
  const activation = OWNERS.indexOf('activation');
  const held = new Map<string, number>();
  for (const block of liveAt(timeline, timeline.peaks.allocated.event)) {
    if (block.owner !== activation) continue;
    const phase = trace.events.phase[block.bornAt];
    const microBatch = labelOf(trace, phase, 'micro_batch');
    if (microBatch === undefined) continue;
    const chunk = labelOf(trace, phase, 'stage') ?? labelOf(trace, phase, 'chunk') ?? WHOLE;
    const key = `${chunk}/${microBatch}`;
    held.set(key, (held.get(key) ?? 0) + block.block);
  }
  // In a pipeline, what belongs to no stage is the loop around it.
  const staged = [...held.keys()].some((key) => !key.startsWith(WHOLE));
  if (staged) for (const key of held.keys()) if (key.startsWith(WHOLE)) held.delete(key);
  const most = Math.max(0, ...held.values());
  const alive = [...held.values()].filter((bytes) => bytes >= most / 10).length;
  return alive === 0 ? null : alive;
}

/** What has no assumption that stands in for it. */
function uncoveredOf(trace: Trace): Missing[] {
  return trace.uncovered
    .filter((event) => event.assumption === '')
    .map((event) => ({
      what: `${event.kind} ${event.name}${event.detail === '' ? '' : ` (${event.detail})`}`,
      bytes: event.bytes < 0 ? null : event.bytes,
    }));
}

function assumptionsOf(trace: Trace): string[] {
  return [
    ...new Set(
      trace.uncovered
        .filter((event) => event.assumption !== '')
        .map((event) => `${event.name}: ${event.assumption}`),
    ),
  ];
}

function faultsOf(trace: Trace): string[] {
  const faults = [...trace.integrity.faults];
  for (const error of trace.errors) if (error.fatal) faults.unshift(error.cause);
  return faults.length === 0 ? ['the run did not end well'] : faults;
}
