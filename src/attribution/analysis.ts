// The one way from a trace to figures: read it, replay each device, and offer what every form of report, the exports and compare
// ask for. Replays are done at once; attributions are computed when first asked for and kept.

import { UserError } from '../base/errors.ts';
import { type Evidence, weakestEvidence } from '../base/evidence.ts';
import { DeviceOutOfMemory } from '../device/device.ts';
import type { ExternalPart, GpuDevice } from '../device/gpu_device.ts';
import type { DeviceCapacity } from '../device/gpus.ts';
import { HostMemory } from '../device/host_memory.ts';
import {
  deviceForTrace,
  NEVER_FULL,
  type ReplayTarget,
  type TraceDevice,
} from '../device/trace_device.ts';
import { type AllocatorHistory, recordAllocatorHistory } from '../timeline/allocator_history.ts';
import { replay } from '../timeline/replay.ts';
import type { MemoryKind, OutOfMemory, Timeline } from '../timeline/timeline.ts';
import { readTrace } from '../trace/reader.ts';
import type { DeviceMeta, Trace } from '../trace/trace.ts';
import { type Attribution, attributionAt } from './attribution.ts';
import { type Lifetimes, lifetimes } from './lifetimes.ts';

/** The device of the replay; what is absent comes from the trace. */
export type AnalysisOptions = ReplayTarget;

/** How the figures of a device are known. */
export interface DeviceEvidence {
  readonly allocator: Evidence;
  readonly external: Evidence;
}

export interface DeviceReplay {
  readonly meta: DeviceMeta;
  /** Null for the host: its memory is counted but has no limit here. */
  readonly capacity: DeviceCapacity | null;
  /** The whole run. When the device would have been full (`outOfMemory`), as if it had been large enough. */
  readonly timeline: Timeline;
  /** Where the job ends on this capacity; null when it does not. */
  readonly outOfMemory: OutOfMemory | null;
  readonly evidence: DeviceEvidence;
  /** What stands outside the allocator during an event. Empty when nothing is known of it. */
  readonly externalAt: (event: number) => readonly ExternalPart[];
  /** What was assumed or is not modelled, in sentences. */
  readonly notes: readonly string[];
  /** A fresh device of the same kind as the one that `timeline` was replayed on; null for what is not modelled. */
  readonly freshDevice: (() => GpuDevice) | null;
}

/** One device of a run, replayed, with what can be asked of it. */
export class DeviceAnalysis {
  readonly meta: DeviceReplay['meta'];
  /** `cuda:0`, `cpu`. */
  readonly name: string;
  readonly capacity: DeviceReplay['capacity'];
  readonly timeline: DeviceReplay['timeline'];
  readonly outOfMemory: DeviceReplay['outOfMemory'];
  readonly evidence: DeviceReplay['evidence'];
  readonly externalAt: DeviceReplay['externalAt'];
  readonly notes: DeviceReplay['notes'];
  readonly #freshDevice: DeviceReplay['freshDevice'];
  readonly #attributions = new Map<number, Attribution>();
  #lifetimes: Lifetimes | undefined;

  constructor(done: DeviceReplay) {
    const { meta } = done;
    this.meta = meta;
    this.name = meta.type === 'cpu' ? 'cpu' : `${meta.type}:${meta.index}`;
    this.capacity = done.capacity;
    this.timeline = done.timeline;
    this.outOfMemory = done.outOfMemory;
    this.evidence = done.evidence;
    this.externalAt = done.externalAt;
    this.notes = done.notes;
    this.#freshDevice = done.freshDevice;
  }

  /** Who held `allocated` during an event. */
  attributionAt(event: number): Attribution {
    let attribution = this.#attributions.get(event);
    if (attribution === undefined) {
      attribution = attributionAt(this.timeline, event);
      this.#attributions.set(event, attribution);
    }
    return attribution;
  }

  /** Who held `allocated` where `kind` had its peak. */
  attributionAtPeak(kind: MemoryKind = 'allocated'): Attribution {
    return this.attributionAt(this.timeline.peaks[kind].event);
  }

  /** Every entry of the allocator, by a replay of its own; null for the host and for measured runs. */
  allocatorHistory(): AllocatorHistory | null {
    if (this.#freshDevice === null) return null;
    return recordAllocatorHistory(this.timeline.trace, this.meta.id, this.#freshDevice());
  }

  /** When each block was made and when it ended. */
  lifetimes(): Lifetimes {
    this.#lifetimes ??= lifetimes(this.timeline);
    return this.#lifetimes;
  }
}

/** What a measured run has beside its figures (see measured/). */
export interface MeasuredFacts {
  /** `snapshot` or `capture`. */
  readonly format: string;
  /** Phases, by id, that an out-of-memory error happened in: their figures are lower bounds and are never scored. */
  readonly censored: ReadonlySet<number>;
  /** The pickle of torch.cuda.memory._dump_snapshot that the run was read from, as torch wrote it. */
  readonly snapshot: () => AsyncIterable<Uint8Array>;
  /** Sentences: what is not known, how it was obtained. */
  readonly notes: readonly string[];
  /** Of a captured run: what it may be used for, and the digest of its configuration. */
  readonly purpose?: 'calibration' | 'validation';
  readonly configuration?: string;
}

/** The calibration profile that stands for the memory outside the allocator (see measured/calibration). */
export interface CalibrationFacts {
  readonly name: string;
  /** Digests of the configurations that it was measured on. */
  readonly configurations: readonly string[];
  readonly notes: readonly string[];
}

export interface Analysis {
  /** Where the trace was read from; '' when it was not read from a file. */
  readonly path: string;
  readonly trace: Trace;
  readonly options: AnalysisOptions;
  /** CUDA devices first. Devices on which no storage ever lived are left out. */
  readonly devices: readonly DeviceAnalysis[];
  /** Absent for an estimate. */
  readonly measured?: MeasuredFacts;
  /** Absent without a profile. */
  readonly calibration?: CalibrationFacts;
}

/** @throws UserError when the file is not a readable trace or an option does not parse. */
export async function analyze(path: string, options: AnalysisOptions = {}): Promise<Analysis> {
  return analyzeTrace(await readTrace(path), options, path);
}

/** @throws UserError when an option does not parse. */
export function analyzeTrace(trace: Trace, options: AnalysisOptions = {}, path = ''): Analysis {
  const used = new Set<number>();
  const { events } = trace;
  for (let i = 0; i < events.length; i++) if (events.bytes[i] > 0) used.add(events.device[i]);
  const devices = trace.devices
    .filter((meta) => meta !== undefined)
    .filter((meta) => used.has(meta.id))
    .sort((a, b) => Number(a.type === 'cpu') - Number(b.type === 'cpu') || a.id - b.id)
    .map((meta) => new DeviceAnalysis(replayed(trace, meta, options)));
  return { path, trace, options, devices };
}

function replayed(trace: Trace, meta: DeviceMeta, options: AnalysisOptions): DeviceReplay {
  if (meta.type === 'cpu') return replayedHost(trace, meta);
  const { device, capacity, notes } = freshDevice(trace, meta, options);
  const limited = replay(trace, meta.id, device);
  const { outOfMemory } = limited;
  const unlimited = { ...options, usableBytes: NEVER_FULL };
  const timeline =
    outOfMemory === null
      ? limited
      : replay(trace, meta.id, freshDevice(trace, meta, unlimited).device);
  // A second replay, without the storages: what is outside the allocator does not depend on them.
  const externalAt = (until: number) => {
    const other = freshDevice(trace, meta, unlimited).device;
    replay(trace, meta.id, other, { until, storages: false });
    return other.externalParts();
  };
  const external = weakestEvidence(
    externalAt(timeline.peaks.reserved.event).map(({ evidence }) => evidence),
  );
  return {
    meta,
    capacity,
    timeline,
    outOfMemory,
    evidence: {
      allocator: 'executed',
      external: Number.isNaN(timeline.peaks.external.bytes) ? 'unknown' : external,
    },
    externalAt,
    notes,
    freshDevice: () => freshDevice(trace, meta, outOfMemory === null ? options : unlimited).device,
  };
}

function replayedHost(trace: Trace, meta: DeviceMeta): DeviceReplay {
  return {
    meta,
    capacity: null,
    timeline: replay(trace, meta.id, new HostMemory()),
    outOfMemory: null,
    evidence: { allocator: 'executed', external: 'executed' },
    externalAt: () => [],
    notes: [],
    freshDevice: null,
  };
}

function freshDevice(trace: Trace, meta: DeviceMeta, target: ReplayTarget): TraceDevice {
  try {
    return deviceForTrace(trace.header, target, meta.index);
  } catch (error) {
    if (!(error instanceof DeviceOutOfMemory)) throw error;
    throw new UserError('capacity-too-small', error.message, { cause: error });
  }
}
