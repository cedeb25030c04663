// Drives a device through a trace, event by event, and notes what the device says after each. Milliseconds for a real trace.

import {
  type Allocation,
  type Device,
  type DeviceCounters,
  DeviceOutOfMemory,
} from '../device/device.ts';
import { EVENTS, type EventOf } from '../protocol/events.ts';
import type { Trace } from '../trace/trace.ts';
import {
  type Instant,
  MEMORY_KINDS,
  type OutOfMemory,
  type Peak,
  type Peaks,
  type PhaseSpan,
  type Timeline,
} from './timeline.ts';

const C = {
  alloc: EVENTS.alloc.code,
  free: EVENTS.free.code,
  resize: EVENTS.resize.code,
  recordStream: EVENTS.record_stream.code,
  eventRecord: EVENTS.event_record.code,
  eventWait: EVENTS.event_wait.code,
  eventSynchronize: EVENTS.event_synchronize.code,
  streamSynchronize: EVENTS.stream_synchronize.code,
  deviceSynchronize: EVENTS.device_synchronize.code,
  phaseBegin: EVENTS.phase_begin.code,
  phaseEnd: EVENTS.phase_end.code,
} as const;

const NOTHING: Allocation = { size: 0 };

/** The first CUDA device of a trace, else its first device; undefined when no tensor was ever made. */
export function mainDevice(trace: Trace): number | undefined {
  const devices = trace.devices.filter((device) => device !== undefined);
  return (devices.find((device) => device.type === 'cuda') ?? devices[0])?.id;
}

export interface ReplayOptions {
  /** The replay ends after this event: the device then stands as it did there. Default: the last event. */
  readonly until?: number;
  /** False leaves out the storages: only communicators, other memory and phases reach the device. Default true. */
  readonly storages?: boolean;
  /** Called before each event, for observers of the device. */
  readonly beforeEvent?: (event: number) => void;
}

/**
 * Replays the events of one device of `trace`. Deterministic; the trace is not changed, the device is used up.
 * Ends early, with `outOfMemory` set, when the device throws DeviceOutOfMemory.
 */
export function replay(
  trace: Trace,
  deviceId: number,
  device: Device,
  options: ReplayOptions = {},
): Timeline {
  return new Replay(trace, deviceId, device, options.storages ?? true).run(
    options.until ?? Number.POSITIVE_INFINITY,
    options.beforeEvent,
  );
}

/** Mutable peaks of one open phase (or of the whole run), by index into MEMORY_KINDS. */
class PeakTracker {
  readonly bytes = new Float64Array(MEMORY_KINDS.length).fill(-1);
  readonly event = new Uint32Array(MEMORY_KINDS.length);

  merge(inner: PeakTracker): void {
    for (let k = 0; k < MEMORY_KINDS.length; k++) {
      if (inner.bytes[k] > this.bytes[k]) {
        this.bytes[k] = inner.bytes[k];
        this.event[k] = inner.event[k];
      }
    }
  }

  toPeaks(): Peaks {
    const peaks: Record<string, Peak> = {};
    MEMORY_KINDS.forEach((kind, k) => {
      // Below zero: never a number, which is so only where external memory is not known.
      const bytes = this.bytes[k] < 0 ? Number.NaN : this.bytes[k];
      peaks[kind] = { bytes, event: this.event[k] };
    });
    return peaks as Peaks;
  }
}

interface OpenPhase {
  readonly id: number;
  readonly before: Instant;
  readonly peaks: PeakTracker;
  /** Index in the list of spans, which is in order of beginning. */
  readonly slot: number;
}

class Replay {
  readonly #trace: Trace;
  readonly #deviceId: number;
  readonly #storages: boolean;
  readonly #device: Device;
  readonly #counters: DeviceCounters;
  readonly #allocations: (Allocation | undefined)[];
  readonly #series: Timeline['series'];
  readonly #blockBytes: Float64Array;
  readonly #run = new PeakTracker();
  readonly #open: OpenPhase[] = [];
  readonly #spans: (PhaseSpan | undefined)[] = [];
  #innermost = this.#run;
  #low: { bytes: number; event: number } = { bytes: 0, event: 0 };
  #high: { bytes: number; event: number } = { bytes: 0, event: 0 };

  constructor(trace: Trace, deviceId: number, device: Device, storages: boolean) {
    this.#trace = trace;
    this.#storages = storages;
    this.#deviceId = deviceId;
    this.#device = device;
    this.#counters = device.counters;
    this.#allocations = new Array(trace.storageCount);
    const { length } = trace.events;
    this.#series = {
      requested: new Float64Array(length),
      allocated: new Float64Array(length),
      active: new Float64Array(length),
      reserved: new Float64Array(length),
      external: new Float64Array(length),
    };
    this.#blockBytes = new Float64Array(length);
  }

  run(until: number, beforeEvent?: (event: number) => void): Timeline {
    const length = Math.min(this.#trace.events.length, until + 1);
    let outOfMemory: OutOfMemory | null = null;
    let event = 0;
    for (; event < length; event++) {
      beforeEvent?.(event);
      const before = this.#counters.reserved;
      try {
        this.#step(event);
      } catch (error) {
        if (!(error instanceof DeviceOutOfMemory)) throw error;
        outOfMemory = {
          event,
          kind: error.kind,
          requestedBytes: error.requestedBytes,
          message: error.message,
          // The failed call may have emptied the cache on its way; the device was full with it.
          instant: this.#fullInstant(event, before),
        };
        event++;
        break;
      }
      this.#sample(event);
    }
    // Without any event the device stands as it began.
    if (length === 0) this.#sample(0);
    const final = instantOf(this.#counters);
    while (this.#open.length > 0) this.#closePhase(final);
    return {
      trace: this.#trace,
      deviceId: this.#deviceId,
      length: event,
      series: this.#series,
      blockBytes: this.#blockBytes,
      peaks: this.#run.toPeaks(),
      residentLow: this.#low,
      residentHigh: this.#high,
      phases: this.#spans.filter((span) => span !== undefined),
      final,
      outOfMemory,
    };
  }

  #step(i: number): void {
    const { code, subject, bytes, device: deviceOf, stream, pool } = this.#trace.events;
    const device = this.#device;
    switch (code[i]) {
      case C.alloc:
        if (this.#storages && deviceOf[i] === this.#deviceId) {
          this.#malloc(i, subject[i], bytes[i], stream[i], pool[i]);
        }
        return;
      case C.free:
        if (deviceOf[i] === this.#deviceId) this.#free(subject[i]);
        return;
      case C.resize:
        if (this.#storages && deviceOf[i] === this.#deviceId) {
          const old = this.#allocations[subject[i]];
          this.#malloc(i, subject[i], bytes[i], stream[i], pool[i]);
          // Both blocks are live here: ATen's resize_bytes_cuda copies before it lets the old one go.
          this.#sample(i);
          if (old !== undefined && old !== NOTHING) device.free(old);
        }
        return;
      case C.recordStream: {
        const allocation = this.#allocations[subject[i]];
        if (allocation !== undefined && allocation !== NOTHING) {
          device.recordStream(allocation, stream[i]);
        }
        return;
      }
      case C.eventRecord:
        device.recordEvent(subject[i], stream[i]);
        return;
      case C.eventWait:
        device.waitEvent(subject[i], stream[i]);
        return;
      case C.eventSynchronize:
        device.synchronizeEvent(subject[i]);
        return;
      case C.streamSynchronize:
        if (deviceOf[i] === this.#deviceId) device.synchronizeStream(stream[i]);
        return;
      case C.deviceSynchronize:
        if (deviceOf[i] === this.#deviceId) device.synchronize();
        return;
      case C.phaseBegin:
        this.#openPhase(subject[i]);
        device.beginPhase?.(this.#phaseName(subject[i]));
        return;
      case C.phaseEnd:
        device.endPhase?.(this.#phaseName(subject[i]));
        this.#closePhase(instantOf(this.#counters));
        return;
      default:
        this.#rare(i);
    }
  }

  #malloc(event: number, storage: number, bytes: number, stream: number, pool: number): void {
    // An empty storage never reaches the allocator (c10/core/StorageImpl, torch 2.14.1).
    const allocation = bytes === 0 ? NOTHING : this.#device.malloc(bytes, stream, pool);
    this.#allocations[storage] = allocation;
    this.#blockBytes[event] = allocation.size;
  }

  #free(storage: number): void {
    const allocation = this.#allocations[storage];
    this.#allocations[storage] = undefined;
    if (allocation !== undefined && allocation !== NOTHING) this.#device.free(allocation);
  }

  #rare(i: number): void {
    const event = this.#trace.rare[this.#trace.events.subject[i]];
    // owner, module_enter and module_exit rows carry no rare event and do not touch the device.
    if (event === undefined || EVENTS[event.type].code !== this.#trace.events.code[i]) return;
    const device = this.#device;
    const here = !('device' in event) || event.device === this.#deviceId;
    switch (event.type) {
      case 'empty_cache':
        if (here) device.emptyCache();
        return;
      case 'set_fraction':
        if (here) device.setFraction(event.fraction);
        return;
      case 'allocator_settings':
        device.applySettings(event.conf);
        return;
      case 'pool_create':
        if (here) device.createPool(event.pool, event.kind, event.options);
        return;
      case 'pool_begin':
        device.beginPool(event.pool, event.stream);
        return;
      case 'pool_end':
        device.endPool(event.pool);
        return;
      case 'pool_release':
        device.releasePool(event.pool);
        return;
      case 'communicator':
        device.createCommunicator(event);
        return;
      case 'communicator_destroy':
        device.destroyCommunicator(event.communicator);
        return;
      case 'collective_begin':
        device.beginCollective(
          event satisfies EventOf<'collective_begin'>,
          this.#trace.strings[event.kind] ?? '',
        );
        return;
      case 'collective_end':
        device.endCollective(event.collective);
        return;
      case 'external_alloc':
        if (here) device.allocExternal(event);
        return;
      case 'external_free':
        device.freeExternal(event.external);
        return;
      default:
        return;
    }
  }

  #phaseName(id: number): string {
    return this.#trace.phases[id]?.name ?? '';
  }

  #openPhase(id: number): void {
    const phase: OpenPhase = {
      id,
      before: instantOf(this.#counters),
      peaks: new PeakTracker(),
      slot: this.#spans.length,
    };
    this.#spans.push(undefined);
    this.#open.push(phase);
    this.#innermost = phase.peaks;
  }

  #closePhase(after: Instant): void {
    const phase = this.#open.pop();
    const meta = phase === undefined ? undefined : this.#trace.phases[phase.id];
    if (phase === undefined || meta === undefined) return;
    this.#spans[phase.slot] = {
      phase: meta,
      before: phase.before,
      after,
      peaks: phase.peaks.toPeaks(),
    };
    const outer = this.#open.at(-1)?.peaks ?? this.#run;
    outer.merge(phase.peaks);
    this.#innermost = outer;
  }

  #fullInstant(event: number, reserved: number): Instant {
    const now = instantOf(this.#counters);
    for (const kind of ['requested', 'allocated', 'active', 'external'] as const) {
      this.#series[kind][event] = now[kind];
    }
    this.#series.reserved[event] = reserved;
    return { ...now, reserved, resident: reserved + now.external };
  }

  /** Notes the counters as of event `i`; called twice in a resize. */
  #sample(i: number): void {
    const { requested, allocated, active, reserved, external, externalLow, externalHigh } =
      this.#counters;
    const series = this.#series;
    if (requested > series.requested[i]) series.requested[i] = requested;
    if (allocated > series.allocated[i]) series.allocated[i] = allocated;
    if (active > series.active[i]) series.active[i] = active;
    if (reserved > series.reserved[i]) series.reserved[i] = reserved;
    if (!(external <= series.external[i])) series.external[i] = external;
    const { bytes, event } = this.#innermost;
    if (requested > bytes[0]) this.#raise(bytes, event, 0, requested, i);
    if (allocated > bytes[1]) this.#raise(bytes, event, 1, allocated, i);
    if (active > bytes[2]) this.#raise(bytes, event, 2, active, i);
    if (reserved > bytes[3]) this.#raise(bytes, event, 3, reserved, i);
    if (external > bytes[4]) this.#raise(bytes, event, 4, external, i);
    if (reserved + external > bytes[5]) this.#raise(bytes, event, 5, reserved + external, i);
    if (!(reserved + externalLow <= this.#low.bytes))
      this.#low = { bytes: reserved + externalLow, event: i };
    if (!(reserved + externalHigh <= this.#high.bytes))
      this.#high = { bytes: reserved + externalHigh, event: i };
  }

  #raise(bytes: Float64Array, event: Uint32Array, kind: number, value: number, i: number): void {
    bytes[kind] = value;
    event[kind] = i;
  }
}

function instantOf(counters: DeviceCounters): Instant {
  const { requested, allocated, active, reserved, external, externalLow, externalHigh } = counters;
  return {
    requested,
    allocated,
    active,
    reserved,
    external,
    externalLow,
    externalHigh,
    resident: reserved + external,
  };
}
