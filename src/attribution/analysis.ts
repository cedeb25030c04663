// The one way from a trace to figures: read it, replay each device, and offer what every form of report, the exports and compare
// ask for. Replays are done at once; attributions are computed when first asked for and kept.

import { bytes } from '../base/bytes.ts';
import type { Evidence } from '../base/evidence.ts';
import { capacityOf, type DeviceCapacity, parseCapacity } from '../device/gpus.ts';
import { HostMemory } from '../device/host_memory.ts';
import { RoundingDevice } from '../device/rounding_device.ts';
import { replay } from '../timeline/replay.ts';
import type { MemoryKind, OutOfMemory, Timeline } from '../timeline/timeline.ts';
import { readTrace } from '../trace/reader.ts';
import type { DeviceMeta, Trace } from '../trace/trace.ts';
import { type Attribution, attributionAt } from './attribution.ts';
import { type Lifetimes, lifetimes } from './lifetimes.ts';

export interface AnalysisOptions {
  /** PYTORCH_ALLOC_CONF of the replay. Absent: what the job itself set. */
  readonly allocConf?: string;
  /** Name of a GPU or a size (`80GB`, bytes). Absent: the GPU that the trace was made for. */
  readonly gpu?: string;
}

/** A part of the memory outside the caching allocator, at one instant. Sizes are NaN where they are not known. */
export interface ExternalComponent {
  readonly name: string;
  readonly category: string;
  readonly bytes: number;
  readonly low: number;
  readonly high: number;
  readonly evidence: Evidence;
  readonly provenance: string;
}

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
  /** What external memory consisted of at the peak of resident. Empty when nothing is known of it. */
  readonly external: readonly ExternalComponent[];
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
  readonly external: DeviceReplay['external'];
  readonly #attributions = new Map<number, Attribution>();
  #lifetimes: Lifetimes | undefined;

  constructor({ meta, capacity, timeline, outOfMemory, evidence, external }: DeviceReplay) {
    this.meta = meta;
    this.name = meta.type === 'cpu' ? 'cpu' : `${meta.type}:${meta.index}`;
    this.capacity = capacity;
    this.timeline = timeline;
    this.outOfMemory = outOfMemory;
    this.evidence = evidence;
    this.external = external;
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
  /** Sentences: what is not known, how it was obtained. */
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
  const capacity = capacityFor(trace, meta, options);
  if (capacity === null) {
    return {
      meta,
      capacity,
      timeline: replay(trace, meta.id, new HostMemory()),
      outOfMemory: null,
      evidence: { allocator: 'executed', external: 'executed' },
      external: [],
    };
  }
  const limited = replay(trace, meta.id, new RoundingDevice(capacity.usableBytes));
  const { outOfMemory } = limited;
  const timeline =
    outOfMemory === null
      ? limited
      : replay(trace, meta.id, new RoundingDevice(Number.POSITIVE_INFINITY));
  const evidence = { allocator: 'executed', external: 'unknown' } as const;
  return { meta, capacity, timeline, outOfMemory, evidence, external: [] };
}

/** The capacity asked for, else the GPU that the trace names, else the bytes that its fake device had. */
function capacityFor(
  trace: Trace,
  meta: DeviceMeta,
  options: AnalysisOptions,
): DeviceCapacity | null {
  if (meta.type === 'cpu') return null;
  if (options.gpu !== undefined) return parseCapacity(options.gpu);
  const { gpu } = trace.header;
  try {
    return parseCapacity(gpu.id);
  } catch {
    return { ...capacityOf(bytes(gpu.total_memory)), source: 'the trace' };
  }
}
