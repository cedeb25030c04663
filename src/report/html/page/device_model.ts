// One device's blocks and series, decoded, with the questions that the views ask: what was live at an event, who held how much, and
// which few events stand for a window of many.

import { OWNERS } from '../../../protocol/events.ts';
import type { DevicePayload, Payload } from '../payload.ts';
import { unzigzag } from '../varint.ts';
import type { Columns } from './decode.ts';

/** Events between two kept sums of bytes by owner. */
const CHECKPOINT = 256;
/** Events summed up by one entry of the outline. */
const OUTLINE = 64;

/** The event during which a block is gone, for blocks that outlive the trace. */
const NEVER = Number.POSITIVE_INFINITY;

export interface Block {
  readonly row: number;
  readonly owner: number;
  readonly ownerName: number;
}

export class DeviceModel {
  readonly name: string;
  readonly events: number;
  readonly blocks: number;
  readonly payload: Payload;
  /** By block, in order of birth. */
  readonly born: Float64Array;
  /** First event without the block. */
  readonly end: Float64Array;
  readonly requested: Float64Array;
  readonly size: Float64Array;
  readonly columns: Columns;
  /** By event. */
  readonly allocated: Float64Array;
  readonly active: Float64Array;
  readonly reserved: Float64Array;
  /** NaN throughout where it is not known. */
  readonly external: Float64Array;
  readonly resident: Float64Array;
  readonly phase: Uint32Array;
  /** Blocks by `end`. */
  readonly #endings: Uint32Array;
  readonly #checkpoints: Checkpoints;
  readonly #outlines: readonly Outline[];

  constructor(device: DevicePayload, columns: Columns, payload: Payload) {
    this.name = device.name;
    this.events = device.events;
    this.blocks = device.blocks;
    this.payload = payload;
    this.columns = columns;
    const { blocks, events } = device;
    this.born = new Float64Array(blocks);
    this.end = new Float64Array(blocks);
    this.size = new Float64Array(blocks);
    this.requested = columns.requested;
    let born = 0;
    for (let row = 0; row < blocks; row++) {
      born += columns.born[row];
      this.born[row] = born;
      this.end[row] = columns.life[row] === 0 ? NEVER : born + columns.life[row];
      this.size[row] = columns.requested[row] + columns.slack[row];
    }
    this.#endings = Uint32Array.from({ length: blocks }, (_, row) => row).sort(
      (a, b) => this.end[a] - this.end[b] || a - b,
    );
    this.phase = phaseOfEvents(columns, events);
    this.allocated = steps(columns.restEvent, columns.restStep, events);
    this.#addBlocks(this.allocated);
    this.active = steps(columns.waitingEvent, columns.waitingStep, events);
    for (let i = 0; i < events; i++) this.active[i] += this.allocated[i];
    this.reserved = steps(columns.reservedEvent, columns.reservedStep, events);
    this.external = device.externalKnown
      ? steps(columns.externalEvent, columns.externalStep, events)
      : new Float64Array(events).fill(Number.NaN);
    this.resident = new Float64Array(events);
    for (let i = 0; i < events; i++) {
      this.resident[i] = this.reserved[i] + (device.externalKnown ? this.external[i] : 0);
    }
    this.#checkpoints = new Checkpoints(this, this.#endings);
    this.#outlines = [new Outline(this.allocated), new Outline(this.resident)];
  }

  /** Blocks live during `event`, in order of birth, with their owners at that event. */
  liveAt(event: number): Block[] {
    const owner = Uint8Array.from(this.columns.owner);
    const ownerName = Uint32Array.from(this.columns.ownerName);
    const { changeEvent, changeBlock, changeOwner, changeName } = this.columns;
    for (let i = 0; i < changeEvent.length && changeEvent[i] <= event; i++) {
      owner[changeBlock[i]] = changeOwner[i];
      ownerName[changeBlock[i]] = changeName[i];
    }
    const live: Block[] = [];
    for (let row = 0; row < this.blocks && this.born[row] <= event; row++) {
      if (this.end[row] > event) live.push({ row, owner: owner[row], ownerName: ownerName[row] });
    }
    return live;
  }

  /** Bytes by owner during each of `chosen` (in order). Row after row of OWNERS.length. */
  ownerSums(chosen: Uint32Array): Float64Array {
    return this.#checkpoints.sumsAt(chosen);
  }

  /**
   * At most about six events for each of `buckets` parts of [from, to], so that a curve through them has the exact extremes
   * of allocated and resident in every part.
   */
  sample(from: number, to: number, buckets: number): Uint32Array {
    const first = Math.max(0, Math.floor(from));
    const last = Math.min(this.events - 1, Math.ceil(to));
    const count = last - first + 1;
    if (count <= 0) return new Uint32Array(0);
    if (count <= buckets * 2) return Uint32Array.from({ length: count }, (_, i) => first + i);
    const chosen: number[] = [];
    for (let bucket = 0; bucket < buckets; bucket++) {
      const start = first + Math.floor((bucket * count) / buckets);
      const stop = first + Math.floor(((bucket + 1) * count) / buckets) - 1;
      const picked = [start, stop];
      for (const outline of this.#outlines) picked.push(...outline.extremes(start, stop));
      picked.sort((a, b) => a - b);
      for (const event of picked) if (chosen[chosen.length - 1] !== event) chosen.push(event);
    }
    return Uint32Array.from(chosen);
  }

  string(id: number): string {
    return this.payload.strings[id] ?? '';
  }

  #addBlocks(allocated: Float64Array): void {
    const change = new Float64Array(this.events + 1);
    for (let row = 0; row < this.blocks; row++) {
      change[this.born[row]] += this.size[row];
      if (this.end[row] <= this.events) change[this.end[row]] -= this.size[row];
    }
    let live = 0;
    for (let i = 0; i < this.events; i++) {
      live += change[i];
      allocated[i] += live;
    }
  }
}

function phaseOfEvents({ phaseRunLength, phaseRunPhase }: Columns, events: number): Uint32Array {
  const phase = new Uint32Array(events);
  let at = 0;
  for (let run = 0; run < phaseRunLength.length; run++) {
    phase.fill(phaseRunPhase[run], at, at + phaseRunLength[run]);
    at += phaseRunLength[run];
  }
  return phase;
}

/** Spreads a list of steps over all events. */
function steps(event: Float64Array, step: Float64Array, events: number): Float64Array {
  const series = new Float64Array(events);
  let value = 0;
  let at = 0;
  for (let i = 0; i < event.length; i++) {
    const next = at + event[i];
    series.fill(value, at, next);
    value += unzigzag(step[i]);
    at = next;
  }
  series.fill(value, at);
  return series;
}

/** Smallest and largest of a series by stretches, so that a window of a million events is searched in no time. */
class Outline {
  readonly #series: Float64Array;
  readonly #low: Uint32Array;
  readonly #high: Uint32Array;

  constructor(series: Float64Array) {
    this.#series = series;
    const count = Math.ceil(series.length / OUTLINE);
    this.#low = new Uint32Array(count);
    this.#high = new Uint32Array(count);
    for (let part = 0; part < count; part++) {
      const stop = Math.min(series.length, (part + 1) * OUTLINE) - 1;
      [this.#low[part], this.#high[part]] = this.#scan(part * OUTLINE, stop);
    }
  }

  /** Events of the smallest and of the largest value in [from, to]. */
  extremes(from: number, to: number): [number, number] {
    const firstPart = Math.ceil(from / OUTLINE);
    const lastPart = Math.floor((to + 1) / OUTLINE);
    if (firstPart >= lastPart) return this.#scan(from, to);
    let [low, high] = this.#scan(from, Math.min(to, firstPart * OUTLINE));
    const tail = this.#scan(Math.max(from, lastPart * OUTLINE - 1), to);
    const series = this.#series;
    const consider = (candidateLow: number, candidateHigh: number) => {
      if (series[candidateLow] < series[low]) low = candidateLow;
      if (series[candidateHigh] > series[high]) high = candidateHigh;
    };
    for (let part = firstPart; part < lastPart; part++) consider(this.#low[part], this.#high[part]);
    consider(...tail);
    return [low, high];
  }

  #scan(from: number, to: number): [number, number] {
    const series = this.#series;
    let low = from;
    let high = from;
    for (let i = from + 1; i <= to; i++) {
      if (series[i] < series[low]) low = i;
      if (series[i] > series[high]) high = i;
    }
    return [low, high];
  }
}

/** Bytes by owner, kept every CHECKPOINT events; in between they are counted from the nearest one. */
class Checkpoints {
  readonly #model: DeviceModel;
  readonly #endings: Uint32Array;
  readonly #sums: Float64Array;
  /** Where births, endings and changes stand at each checkpoint. */
  readonly #birth: Uint32Array;
  readonly #ending: Uint32Array;
  readonly #change: Uint32Array;
  /** By change: the owner before it. */
  readonly #ownerBefore: Uint8Array;
  /** By block: its last owner. */
  readonly #lastOwner: Uint8Array;

  constructor(model: DeviceModel, endings: Uint32Array) {
    this.#model = model;
    this.#endings = endings;
    const { changeBlock, changeOwner } = model.columns;
    const owner = Uint8Array.from(model.columns.owner);
    this.#ownerBefore = new Uint8Array(changeBlock.length);
    for (let i = 0; i < changeBlock.length; i++) {
      this.#ownerBefore[i] = owner[changeBlock[i]];
      owner[changeBlock[i]] = changeOwner[i];
    }
    this.#lastOwner = owner;
    const count = Math.ceil(model.events / CHECKPOINT) + 1;
    this.#sums = new Float64Array(count * OWNERS.length);
    this.#birth = new Uint32Array(count);
    this.#ending = new Uint32Array(count);
    this.#change = new Uint32Array(count);
    const cursor = this.#cursor();
    for (let index = 0; index < count; index++) {
      cursor.to(index * CHECKPOINT - 1);
      this.#sums.set(cursor.sums, index * OWNERS.length);
      this.#birth[index] = cursor.birth;
      this.#ending[index] = cursor.ending;
      this.#change[index] = cursor.change;
    }
  }

  sumsAt(chosen: Uint32Array): Float64Array {
    const all = new Float64Array(chosen.length * OWNERS.length);
    const cursor = this.#cursor();
    let at = -1;
    chosen.forEach((event, i) => {
      const checkpoint = Math.floor(event / CHECKPOINT);
      if (checkpoint * CHECKPOINT - 1 > at) {
        const start = checkpoint * OWNERS.length;
        cursor.sums.set(this.#sums.subarray(start, start + OWNERS.length));
        cursor.birth = this.#birth[checkpoint];
        cursor.ending = this.#ending[checkpoint];
        cursor.change = this.#change[checkpoint];
      }
      cursor.to(event);
      at = event;
      all.set(cursor.sums, i * OWNERS.length);
    });
    return all;
  }

  #cursor(): Cursor {
    return new Cursor(this.#model, this.#endings, this.#ownerBefore, this.#lastOwner);
  }
}

/** Goes through births, endings and changes of owner in order of events. */
class Cursor {
  readonly sums = new Float64Array(OWNERS.length);
  birth = 0;
  ending = 0;
  change = 0;
  readonly #model: DeviceModel;
  readonly #endings: Uint32Array;
  readonly #ownerBefore: Uint8Array;
  readonly #lastOwner: Uint8Array;

  constructor(
    model: DeviceModel,
    endings: Uint32Array,
    ownerBefore: Uint8Array,
    lastOwner: Uint8Array,
  ) {
    this.#model = model;
    this.#endings = endings;
    this.#ownerBefore = ownerBefore;
    this.#lastOwner = lastOwner;
  }

  /** Moves on so that `sums` holds during `event`. */
  to(event: number): void {
    const { born, end, size, columns } = this.#model;
    const { owner, changeEvent, changeBlock, changeOwner } = columns;
    // A block that changes its owner is counted under the first one from birth until the change.
    while (this.birth < born.length && born[this.birth] <= event) {
      this.sums[owner[this.birth]] += size[this.birth];
      this.birth++;
    }
    while (this.change < changeEvent.length && changeEvent[this.change] <= event) {
      const row = changeBlock[this.change];
      this.sums[this.#ownerBefore[this.change]] -= size[row];
      this.sums[changeOwner[this.change]] += size[row];
      this.change++;
    }
    // Changes come before the block ends, so that an ending takes from the last owner.
    while (this.ending < this.#endings.length && end[this.#endings[this.ending]] <= event) {
      const row = this.#endings[this.ending];
      this.sums[this.#lastOwner[row]] -= size[row];
      this.ending++;
    }
  }
}
