// Packs an analysis for the page.

import { deflateRawSync } from 'node:zlib';
import type { Analysis, DeviceAnalysis } from '../../attribution/analysis.ts';
import { NEVER } from '../../attribution/lifetimes.ts';
import { ModuleNames } from '../../attribution/module_name.ts';
import { phaseTitle } from '../../attribution/phase_title.ts';
import { pairDevices } from '../../compare/device_pair.ts';
import { matchPhases } from '../../compare/phase_match.ts';
import { EVENTS } from '../../protocol/events.ts';
import { decimatedEvents } from '../../timeline/decimate.ts';
import type { Timeline } from '../../timeline/timeline.ts';
import type { Trace } from '../../trace/trace.ts';
import { reportDocument } from '../document.ts';
import {
  type BesideDevice,
  type BesidePayload,
  COLUMNS,
  type ColumnName,
  type ColumnPlace,
  type DevicePayload,
  PAYLOAD_VERSION,
  type Payload,
  type PhasePayload,
  type TensorPayload,
} from './payload.ts';
import { VarintWriter } from './varint.ts';

const C = {
  alloc: EVENTS.alloc.code,
  resize: EVENTS.resize.code,
  free: EVENTS.free.code,
  owner: EVENTS.owner.code,
} as const;

/** Points of another run's curve. */
const BESIDE_BUCKETS = 700;

export interface PackedPayload {
  /** Raw deflate, base64. */
  readonly json: string;
  readonly columns: string;
}

export function packPayload(analysis: Analysis, beside: readonly Analysis[]): PackedPayload {
  const { trace } = analysis;
  const tables = new Tables(trace);
  const parts: Uint8Array[] = [];
  const devices = analysis.devices
    .filter((device) => device.capacity !== null)
    .map((device) => packDevice(device, tables, parts));
  const payload: Payload = {
    version: PAYLOAD_VERSION,
    title: titleOf(analysis),
    document: reportDocument(analysis),
    devices,
    beside: beside.map((other) => packBeside(analysis, other)),
    strings: tables.strings.list,
    modules: tables.modules.list,
    tensors: tables.tensors.list,
    stacks: tables.stacks,
    phases: phasesOf(trace),
  };
  return {
    json: deflated(Buffer.from(JSON.stringify(payload))),
    columns: deflated(Buffer.concat(parts)),
  };
}

export function titleOf({ trace, path }: Analysis): string {
  const { header } = trace;
  const name = path.split('/').at(-1) ?? '';
  return `${name === '' ? header.framework : name}, rank ${header.rank} of ${header.world}`;
}

function deflated(bytes: Uint8Array): string {
  return deflateRawSync(bytes, { level: 9 }).toString('base64');
}

function packDevice(device: DeviceAnalysis, tables: Tables, parts: Uint8Array[]): DevicePayload {
  const { timeline } = device;
  const columns = new Columns();
  const rest = packBlocks(device, tables, columns);
  packPhases(timeline, tables.trace, columns);
  const { allocated, active, reserved, external } = timeline.series;
  columns.steps('rest', rest);
  columns.steps('waiting', minus(active, allocated, timeline.length));
  columns.steps('reserved', reserved.subarray(0, timeline.length));
  const externalKnown = !external.subarray(0, timeline.length).some(Number.isNaN);
  if (externalKnown) columns.steps('external', external.subarray(0, timeline.length));
  const places: ColumnPlace[] = [];
  for (const name of COLUMNS) {
    const { writer, length } = columns.of(name);
    places.push({ name, length, bytes: writer.length });
    parts.push(writer.bytes());
  }
  return {
    name: device.name,
    events: timeline.length,
    blocks: columns.of('born').length,
    externalKnown,
    columns: places,
  };
}

/** Returns what `allocated` has beyond the blocks, by event. */
function packBlocks(device: DeviceAnalysis, tables: Tables, columns: Columns): Float64Array {
  const { timeline } = device;
  const { events } = tables.trace;
  const { diedAt } = device.lifetimes();
  const owners = new OwnerRows(tables.trace.storageCount);
  const tensorOf = new Uint32Array(tables.trace.storageCount);
  const sums = new Float64Array(timeline.length + 1);
  let previous = 0;
  // Owners may be claimed after the end of a replay that stopped early.
  for (let i = 0; i < events.length; i++) {
    const code = events.code[i];
    if (events.device[i] !== timeline.deviceId) continue;
    const storage = events.subject[i];
    if (code === C.owner) {
      const name = tables.string(events.op[i]);
      const row = owners.claim(storage, events.pool[i], name);
      if (row >= 0 && i < timeline.length) {
        columns.push('changeEvent', i);
        columns.push('changeBlock', row);
        columns.push('changeOwner', events.pool[i]);
        columns.push('changeName', name);
      }
      continue;
    }
    if (code === C.free) owners.end(storage);
    if ((code !== C.alloc && code !== C.resize) || i >= timeline.length) continue;
    // A resize carries no tensor: the storage is that of its first allocation.
    if (code === C.alloc) tensorOf[storage] = events.tensor[i];
    owners.end(storage);
    const block = timeline.blockBytes[i];
    if (block === 0) continue;
    const death = diedAt[i];
    // Of a resize both blocks are live during the event.
    const end = death === NEVER ? 0 : death + (events.code[death] === C.resize ? 1 : 0);
    sums[i] += block;
    if (end > 0) sums[end] -= block;
    columns.push('born', i - previous);
    previous = i;
    columns.push('life', end === 0 ? 0 : end - i);
    columns.push('requested', events.bytes[i]);
    columns.push('slack', Math.max(0, block - events.bytes[i]));
    columns.push('storage', storage);
    columns.push('op', tables.string(events.op[i]));
    columns.push('stack', tables.stack(events.stack[i]));
    columns.push('module', tables.module(events.module[i]));
    columns.push('tensor', tables.tensor(tensorOf[storage]));
    columns.push('pass', events.pass[i]);
    columns.push('stream', events.stream[i]);
    owners.begin(storage);
  }
  for (const { owner, name } of owners.first) {
    columns.push('owner', owner);
    columns.push('ownerName', name);
  }
  const rest = new Float64Array(timeline.length);
  let live = 0;
  for (let i = 0; i < timeline.length; i++) {
    live += sums[i];
    rest[i] = timeline.series.allocated[i] - live;
  }
  return rest;
}

/** First owner of every row. A row that nobody has claimed gets the owner that claims its storage first, as in liveAt. */
class OwnerRows {
  readonly first: { owner: number; name: number }[] = [];
  readonly #current: ({ owner: number; name: number } | undefined)[] = [];
  readonly #liveRow: Int32Array;
  readonly #unclaimed = new Map<number, number[]>();

  constructor(storageCount: number) {
    this.#liveRow = new Int32Array(storageCount).fill(-1);
  }

  begin(storage: number): void {
    const row = this.first.length;
    this.#liveRow[storage] = row;
    const current = this.#current[storage];
    this.first.push(current ?? { owner: 0, name: 0 });
    if (current !== undefined) return;
    const rows = this.#unclaimed.get(storage);
    if (rows === undefined) this.#unclaimed.set(storage, [row]);
    else rows.push(row);
  }

  end(storage: number): void {
    this.#liveRow[storage] = -1;
  }

  /** Returns the live row whose owner changes with this; -1 when it is the first claim or changes nothing. */
  claim(storage: number, owner: number, name: number): number {
    const before = this.#current[storage];
    const claimed = { owner, name };
    this.#current[storage] = claimed;
    if (before === undefined) {
      for (const row of this.#unclaimed.get(storage) ?? []) this.first[row] = claimed;
      this.#unclaimed.delete(storage);
      return -1;
    }
    return before.owner === owner && before.name === name ? -1 : this.#liveRow[storage];
  }
}

function packPhases(timeline: Timeline, trace: Trace, columns: Columns): void {
  const index = new Map<number, number>();
  trace.phases.forEach((phase) => {
    if (phase !== undefined) index.set(phase.id, index.size + 1);
  });
  const { phase } = trace.events;
  let start = 0;
  for (let i = 1; i <= timeline.length; i++) {
    if (i < timeline.length && phase[i] === phase[start]) continue;
    columns.push('phaseRunLength', i - start);
    columns.push('phaseRunPhase', index.get(phase[start]) ?? 0);
    start = i;
  }
}

function phasesOf(trace: Trace): PhasePayload[] {
  const index = new Map<number, number>();
  const list: PhasePayload[] = [];
  for (const phase of trace.phases) {
    if (phase === undefined) continue;
    index.set(phase.id, list.length);
    const outer = trace.phases[phase.parent];
    list.push({
      parent: index.get(phase.parent) ?? -1,
      depth: phase.depth,
      own: phaseTitle(phase).slice(outer === undefined ? 0 : outer.path.length + 1),
      title: phaseTitle(phase),
      begin: phase.beginEvent,
      end: phase.endEvent,
    });
  }
  return list;
}

function packBeside(main: Analysis, other: Analysis): BesidePayload {
  const devices: BesideDevice[] = [];
  for (const [same, device] of pairDevices(main.devices, other.devices)) {
    if (device.capacity === null) continue;
    const { timeline } = device;
    const chosen = [...decimatedEvents(timeline, BESIDE_BUCKETS)];
    const align = alignment(timeline, same.timeline);
    devices.push({
      name: device.name,
      beside: same.name,
      event: chosen,
      alignedEvent: chosen.map(align),
      allocated: chosen.map((event) => timeline.series.allocated[event]),
      reserved: chosen.map((event) => timeline.series.reserved[event]),
    });
  }
  return { title: titleOf(other), document: reportDocument(other), devices };
}

/** Lays the events of one run onto the axis of another: edges of matching phases meet, what is between is spread evenly. */
function alignment(from: Timeline, to: Timeline): (event: number) => number {
  const anchors: [number, number][] = [[0, 0]];
  const pairs = matchPhases(from.phases, from.trace, to.phases, to.trace);
  const edges = pairs
    .flatMap(({ a, b }) =>
      a === null || b === null
        ? []
        : [
            [a.phase.beginEvent, b.phase.beginEvent] as [number, number],
            [a.phase.endEvent, b.phase.endEvent] as [number, number],
          ],
    )
    .sort(([x], [y]) => x - y);
  edges.push([from.length - 1, to.length - 1]);
  for (const [x, y] of edges) {
    const [lastX, lastY] = anchors[anchors.length - 1];
    if (x > lastX && y >= lastY) anchors.push([x, y]);
  }
  return (event) => {
    let low = 0;
    let high = anchors.length - 1;
    while (low + 1 < high) {
      const middle = (low + high) >> 1;
      if (anchors[middle][0] <= event) low = middle;
      else high = middle;
    }
    const [x0, y0] = anchors[low];
    const [x1, y1] = anchors[high];
    return x1 === x0 ? y0 : y0 + ((event - x0) * (y1 - y0)) / (x1 - x0);
  };
}

function minus(a: Float64Array, b: Float64Array, length: number): Float64Array {
  return Float64Array.from({ length }, (_, i) => a[i] - b[i]);
}

/** The varint columns of one device. */
class Columns {
  readonly #columns = new Map(
    COLUMNS.map((name) => [name, { writer: new VarintWriter(), length: 0 }]),
  );

  of(name: ColumnName): { readonly writer: VarintWriter; length: number } {
    const column = this.#columns.get(name);
    if (column === undefined) throw new Error(`no column ${name}`);
    return column;
  }

  push(name: ColumnName, value: number): void {
    const column = this.of(name);
    column.writer.push(value);
    column.length++;
  }

  /** Where a series changes, and by how much. It starts at 0. */
  steps(name: 'rest' | 'waiting' | 'reserved' | 'external', series: Float64Array): void {
    const step = this.of(`${name}Step`);
    let lastEvent = 0;
    let lastValue = 0;
    for (let i = 0; i < series.length; i++) {
      if (series[i] === lastValue) continue;
      this.push(`${name}Event`, i - lastEvent);
      step.writer.pushSigned(series[i] - lastValue);
      step.length++;
      lastEvent = i;
      lastValue = series[i];
    }
  }
}

/** Renumbers what is used, in order of first use; 0 stays "none". */
class Renumbering<T> {
  readonly list: T[];
  readonly #numbers = new Map<number, number>();
  readonly #describe: (id: number) => T;

  constructor(none: T, describe: (id: number) => T) {
    this.list = [none];
    this.#describe = describe;
  }

  number(id: number): number {
    if (id === 0) return 0;
    let number = this.#numbers.get(id);
    if (number === undefined) {
      // A description may itself number others (a stack its parent): those come first.
      const described = this.#describe(id);
      number = this.list.length;
      this.list.push(described);
      this.#numbers.set(id, number);
    }
    return number;
  }
}

class Tables {
  readonly trace: Trace;
  readonly strings: Renumbering<string>;
  readonly modules: Renumbering<{ name: string; className: string }>;
  readonly tensors: Renumbering<TensorPayload>;
  readonly stackTable: Renumbering<readonly [number, number, number, number]>;

  constructor(trace: Trace) {
    this.trace = trace;
    const names = new ModuleNames(trace);
    this.strings = new Renumbering('', (id) => trace.strings[id] ?? '');
    this.modules = new Renumbering({ name: '', className: '' }, (id) => ({
      name: names.of(id),
      className: trace.modules[id]?.className ?? '',
    }));
    this.tensors = new Renumbering<TensorPayload>({ dtype: '', layout: '', shape: [] }, (id) => {
      const { dtype, layout, shape } = trace.tensors[id] ?? { dtype: '', layout: '', shape: [] };
      return { dtype, layout, shape };
    });
    const { parent, file, function: name, line } = trace.stacks;
    this.stackTable = new Renumbering<readonly [number, number, number, number]>(
      [0, 0, 0, 0],
      (id) => [
        this.stackTable.number(parent[id]),
        this.strings.number(file[id]),
        this.strings.number(name[id]),
        line[id],
      ],
    );
  }

  get stacks(): readonly (readonly [number, number, number, number])[] {
    return this.stackTable.list;
  }

  string(id: number): number {
    return this.strings.number(id);
  }

  stack(id: number): number {
    return this.stackTable.number(id);
  }

  module(id: number): number {
    return this.modules.number(id);
  }

  tensor(id: number): number {
    return this.tensors.number(id);
  }
}
