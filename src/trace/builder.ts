// Turns wire events, one after the other, into a Trace. Used by the file reader, by scenarios and by the importers of measured
// runs, so that everything downstream sees one model.

import { toObject } from '../protocol/codec.ts';
import {
  EVENTS,
  type EventOf,
  type EventTuple,
  type Fields,
  type SidecarEvent,
} from '../protocol/events.ts';
import { Float64Column, Uint8Column, Uint32Column } from './columns.ts';
import type { TraceFooter, TraceHeader } from './file_format.ts';
import type { DeviceMeta, ModuleMeta, PhaseMeta, TensorMeta, Trace } from './trace.ts';

const C = {
  string: EVENTS.string.code,
  stack: EVENTS.stack.code,
  tensor: EVENTS.tensor.code,
  module: EVENTS.module.code,
  device: EVENTS.device.code,
  alloc: EVENTS.alloc.code,
  free: EVENTS.free.code,
  resize: EVENTS.resize.code,
  owner: EVENTS.owner.code,
  recordStream: EVENTS.record_stream.code,
  eventRecord: EVENTS.event_record.code,
  eventWait: EVENTS.event_wait.code,
  eventSynchronize: EVENTS.event_synchronize.code,
  streamSynchronize: EVENTS.stream_synchronize.code,
  deviceSynchronize: EVENTS.device_synchronize.code,
  phaseBegin: EVENTS.phase_begin.code,
  phaseEnd: EVENTS.phase_end.code,
  moduleEnter: EVENTS.module_enter.code,
  moduleExit: EVENTS.module_exit.code,
} as const;

/** States of a storage id. */
const UNBORN = 0;
const LIVE = 1;
const DEAD = 2;

/** So many faults are worth reading; the rest is counted. */
const MAX_FAULTS = 20;

export class TraceBuilder {
  readonly #header: TraceHeader;
  readonly #strings: string[] = [''];
  readonly #stackParent = new Uint32Column();
  readonly #stackFile = new Uint32Column();
  readonly #stackFunction = new Uint32Column();
  readonly #stackLine = new Uint32Column();
  readonly #tensors: (TensorMeta | undefined)[] = [undefined];
  readonly #modules: (ModuleMeta | undefined)[] = [undefined];
  readonly #devices: (DeviceMeta | undefined)[] = [];
  readonly #phases: (PhaseMeta | undefined)[] = [undefined];
  readonly #openPhases: number[] = [];
  readonly #occurrences = new Map<string, number>();
  readonly #storageState = new Uint8Column();
  readonly #storageDevice = new Uint8Column();
  readonly #rare: SidecarEvent[] = [];
  readonly #uncovered: EventOf<'uncovered'>[] = [];
  readonly #errors: EventOf<'error'>[] = [];
  readonly #logs: EventOf<'log'>[] = [];
  readonly #run = new Map<string, Fields>();
  readonly #faults: string[] = [];
  #faultCount = 0;
  #close: EventOf<'close'> | undefined;
  #received = 0;

  readonly #code = new Uint8Column();
  readonly #subject = new Uint32Column();
  readonly #bytes = new Float64Column();
  readonly #device = new Uint8Column();
  readonly #stream = new Uint32Column();
  readonly #pool = new Uint32Column();
  readonly #op = new Uint32Column();
  readonly #stack = new Uint32Column();
  readonly #module = new Uint32Column();
  readonly #pass = new Uint8Column();
  readonly #tensor = new Uint32Column();
  readonly #phase = new Uint32Column();

  constructor(header: TraceHeader) {
    this.#header = header;
    this.#storageState.push(UNBORN);
    this.#storageDevice.push(0);
    this.#padStacks(1);
  }

  /** Number of rows so far: the index that the next memory event will have. */
  get length(): number {
    return this.#code.length;
  }

  /** Notes why the trace is not whole. */
  fault(sentence: string): void {
    this.#faultCount++;
    if (this.#faults.length < MAX_FAULTS) this.#faults.push(sentence);
  }

  /** Adds one event; the tuple has passed the codec's check. An event that contradicts earlier ones is a fault and is left out. */
  push(tuple: EventTuple): void {
    this.#received++;
    const f = tuple as unknown as readonly (number & string)[];
    switch (tuple[0]) {
      case C.alloc:
        if (this.#bear(f[1], f[3])) {
          this.#row(C.alloc, f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10]);
        }
        return;
      case C.free:
        if (this.#isLive(f[1], 'free')) {
          this.#storageState.view()[f[1]] = DEAD;
          this.#row(C.free, f[1], 0, this.#storageDevice.view()[f[1]]);
        }
        return;
      case C.resize:
        if (this.#isLive(f[1], 'resize')) {
          const device = this.#storageDevice.view()[f[1]];
          this.#row(C.resize, f[1], f[2], device, f[3], f[4], f[5], f[6], f[7], f[8]);
        }
        return;
      case C.owner:
        if (this.#isLive(f[1], 'owner')) {
          const device = this.#storageDevice.view()[f[1]];
          this.#row(C.owner, f[1], 0, device, 0, f[2], f[3]);
        }
        return;
      case C.recordStream:
        if (this.#isLive(f[1], 'record_stream')) {
          this.#row(C.recordStream, f[1], 0, this.#storageDevice.view()[f[1]], f[2]);
        }
        return;
      case C.eventRecord:
      case C.eventWait:
        this.#row(tuple[0], f[1], 0, 0, f[2]);
        return;
      case C.eventSynchronize:
        this.#row(C.eventSynchronize, f[1]);
        return;
      case C.streamSynchronize:
        this.#row(C.streamSynchronize, 0, 0, f[1], f[2]);
        return;
      case C.deviceSynchronize:
        this.#row(C.deviceSynchronize, 0, 0, f[1]);
        return;
      case C.moduleEnter:
      case C.moduleExit:
        this.#row(tuple[0], f[1], 0, 0, 0, 0, 0, 0, f[1], f[2]);
        return;
      case C.phaseBegin:
        this.#beginPhase(f[1], f[2], tuple[3] as Fields, f[4]);
        return;
      case C.phaseEnd:
        this.#endPhase(f[1], f[2]);
        return;
      case C.string:
        this.#strings[f[1]] = f[2];
        return;
      case C.stack:
        this.#addStack(f[1], f[2], f[3], f[4], f[5]);
        return;
      case C.tensor:
        this.#tensors[f[1]] = {
          dtype: this.#strings[f[2]] ?? '',
          layout: this.#strings[f[3]] ?? '',
          shape: tuple[4] as readonly number[],
        };
        return;
      case C.module:
        this.#modules[f[1]] = {
          id: f[1],
          parent: f[2],
          name: this.#strings[f[3]] ?? '',
          className: this.#strings[f[4]] ?? '',
        };
        return;
      default:
        this.#rareEvent(toObject(tuple));
    }
  }

  /** The finished trace. The builder must not be used afterwards. */
  finish(footer: TraceFooter | null): Trace {
    if (this.#close === undefined) {
      this.fault('the run did not say that it ended; the trace holds what arrived before');
    } else if (this.#close.events !== this.#received) {
      this.fault(`the run sent ${this.#close.events} events, ${this.#received} arrived`);
    }
    if (this.#faultCount > this.#faults.length) {
      this.#faults.push(`and ${this.#faultCount - this.#faults.length} more faults`);
    }
    for (const id of this.#openPhases) {
      const phase = this.#phases[id];
      if (phase !== undefined) phase.endEvent = Math.max(0, this.#code.length - 1);
    }
    this.#fillLostTables();
    for (const fault of footer?.faults ?? []) {
      if (!this.#faults.includes(fault)) this.#faults.push(fault);
    }
    return {
      header: this.#header,
      footer,
      integrity: {
        complete: this.#faults.length === 0 && this.#close?.status === 'done',
        faults: this.#faults,
        status: this.#close?.status ?? null,
      },
      strings: this.#strings,
      stacks: {
        parent: this.#stackParent.view(),
        file: this.#stackFile.view(),
        function: this.#stackFunction.view(),
        line: this.#stackLine.view(),
      },
      tensors: this.#tensors,
      modules: this.#modules,
      devices: this.#devices,
      phases: this.#phases,
      storageCount: this.#storageState.length,
      events: {
        length: this.#code.length,
        code: this.#code.view(),
        subject: this.#subject.view(),
        bytes: this.#bytes.view(),
        device: this.#device.view(),
        stream: this.#stream.view(),
        pool: this.#pool.view(),
        op: this.#op.view(),
        stack: this.#stack.view(),
        module: this.#module.view(),
        pass: this.#pass.view(),
        tensor: this.#tensor.view(),
        phase: this.#phase.view(),
      },
      rare: this.#rare,
      uncovered: this.#uncovered,
      errors: this.#errors,
      logs: this.#logs,
      run: this.#run,
      closeCounts: this.#close?.counts ?? null,
    };
  }

  #row(
    code: number,
    subject: number,
    bytes = 0,
    device = 0,
    stream = 0,
    pool = 0,
    op = 0,
    stack = 0,
    module = 0,
    pass = 0,
    tensor = 0,
  ): void {
    this.#code.push(code);
    this.#subject.push(subject);
    this.#bytes.push(bytes);
    this.#device.push(device);
    this.#stream.push(stream);
    this.#pool.push(pool);
    this.#op.push(op);
    this.#stack.push(stack);
    this.#module.push(module);
    this.#pass.push(pass);
    this.#tensor.push(tensor);
    this.#phase.push(
      this.#openPhases.length === 0 ? 0 : this.#openPhases[this.#openPhases.length - 1],
    );
  }

  #bear(storage: number, device: number): boolean {
    while (this.#storageState.length <= storage) {
      this.#storageState.push(UNBORN);
      this.#storageDevice.push(0);
    }
    const state = this.#storageState.view();
    if (state[storage] !== UNBORN) {
      this.fault(`storage ${storage} is allocated twice`);
      return false;
    }
    state[storage] = LIVE;
    this.#storageDevice.view()[storage] = device;
    return true;
  }

  #isLive(storage: number, what: string): boolean {
    if (storage < this.#storageState.length && this.#storageState.view()[storage] === LIVE)
      return true;
    this.fault(`${what} of storage ${storage}, which is not live`);
    return false;
  }

  #addStack(id: number, parent: number, file: number, name: number, line: number): void {
    if (id !== this.#stackParent.length) {
      this.fault(`stack ${id} out of order`);
      if (id < this.#stackParent.length) return;
      this.#padStacks(id);
    }
    this.#stackParent.push(parent);
    this.#stackFile.push(file);
    this.#stackFunction.push(name);
    this.#stackLine.push(line);
  }

  /** Empty stacks up to, and without, `length`. */
  #padStacks(length: number): void {
    while (this.#stackParent.length < length) {
      for (const column of [
        this.#stackParent,
        this.#stackFile,
        this.#stackFunction,
        this.#stackLine,
      ]) {
        column.push(0);
      }
    }
  }

  /** A lost batch may have held entries of tables that later events refer to: those read as empty, not as undefined. */
  #fillLostTables(): void {
    if (this.#faultCount === 0) return;
    let stacks = 0;
    let strings = this.#strings.length;
    for (const stack of this.#stack.view()) if (stack >= stacks) stacks = stack + 1;
    for (const { stack } of this.#uncovered) if (stack >= stacks) stacks = stack + 1;
    this.#padStacks(stacks);
    for (const column of [this.#op, this.#stackFile, this.#stackFunction]) {
      for (const id of column.view()) if (id >= strings) strings = id + 1;
    }
    for (let id = 0; id < strings; id++) this.#strings[id] ??= '';
  }

  #beginPhase(id: number, name: string, labels: Fields, time: number): void {
    const parent = this.#openPhases.at(-1) ?? 0;
    const label = Object.entries(labels)
      .map(([key, value]) => `${key}=${String(value)}`)
      .join(',');
    const own = label === '' ? name : `${name}[${label}]`;
    const path = parent === 0 ? own : `${this.#phases[parent]?.path}/${own}`;
    const occurrence = this.#occurrences.get(path) ?? 0;
    this.#occurrences.set(path, occurrence + 1);
    this.#openPhases.push(id);
    this.#phases[id] = {
      id,
      parent,
      depth: this.#openPhases.length - 1,
      name,
      labels,
      path,
      occurrence,
      beginEvent: this.#code.length,
      endEvent: 0,
      beginTime: time,
      endTime: time,
      closed: false,
    };
    this.#row(C.phaseBegin, id);
  }

  #endPhase(id: number, time: number): void {
    if (!this.#openPhases.includes(id)) {
      this.fault(`phase ${id} ends but is not open`);
      return;
    }
    // An exception may leave inner phases open: they end with the outer one.
    for (
      let inner = this.#openPhases.at(-1);
      inner !== undefined;
      inner = this.#openPhases.at(-1)
    ) {
      const phase = this.#phases[inner];
      this.#row(C.phaseEnd, inner);
      this.#openPhases.pop();
      if (phase !== undefined) {
        phase.endEvent = this.#code.length - 1;
        phase.endTime = time;
        phase.closed = true;
      }
      if (inner === id) return;
    }
  }

  #rareEvent(event: SidecarEvent): void {
    switch (event.type) {
      case 'device':
        this.#devices[event.id] = {
          id: event.id,
          type: event.kind,
          index: event.index,
          name: event.name,
          properties: event.properties,
        };
        return;
      case 'run':
        this.#run.set(event.topic, { ...this.#run.get(event.topic), ...event.facts });
        return;
      case 'log':
        this.#logs.push(event);
        return;
      case 'progress':
        return;
      case 'close':
        this.#close = event;
        return;
      case 'uncovered':
        this.#uncovered.push(event);
        break;
      case 'error':
        this.#errors.push(event);
        break;
    }
    this.#rare.push(event);
    const { code } = EVENTS[event.type];
    const device = 'device' in event && typeof event.device === 'number' ? event.device : 0;
    this.#row(code, this.#rare.length - 1, 0, device);
  }
}
