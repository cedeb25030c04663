// What rises from step to step, or from micro-batch to micro-batch: outputs that are kept, lists of losses, reference cycles that the
// garbage collector has not reached.
//
// Live bytes are compared by the place that allocates (operator and Python stack) at the end of each repetition. The first
// repetition is not a witness: the first step makes the optimizer's state and the first micro-batch the gradients. A place grows
// when every later repetition leaves more than the one before, and what was added is still there when all are over (activations of a
// pipeline's warm-up rise with each forward, too, but their backward takes them away).

import { KiB, MiB } from '../base/bytes.ts';
import { EVENTS } from '../protocol/events.ts';
import type { PhaseSpan, Timeline } from '../timeline/timeline.ts';
import type { PhaseMeta } from '../trace/trace.ts';

const ALLOC = EVENTS.alloc.code;
const FREE = EVENTS.free.code;
const RESIZE = EVENTS.resize.code;

/** Repetitions looked at in one series; growth shows in the first ones. */
const MAX_REPETITIONS = 64;
/** Less than this in each repetition is not reported: bookkeeping tensors of a logger. */
const MIN_BYTES = 64 * KiB;
/** The same where only one repetition can be witness: caches that fill once look alike. */
const MIN_BYTES_ONCE = 4 * MiB;

export interface Growth {
  /** What repeats: the phase's name and its label. */
  readonly per: 'step' | 'micro_batch';
  /** Path of the first repetition. */
  readonly phase: PhaseMeta;
  readonly op: number;
  readonly stack: number;
  /** Module of the first block that stayed; 0: none. */
  readonly module: number;
  /** Mean bytes added by a repetition, the first one left out. */
  readonly bytesEach: number;
  /** Repetitions after the first, all of which added bytes. */
  readonly repetitions: number;
}

/** Growing places of a device, those that add most first. Empty when fewer than two repetitions ran. */
export function growthOf(timeline: Timeline): Growth[] {
  const found = seriesOf(timeline.phases).flatMap((series) => growthIn(timeline, series));
  return found.sort((a, b) => b.bytesEach * b.repetitions - a.bytesEach * a.repetitions);
}

interface Series {
  readonly per: Growth['per'];
  readonly spans: readonly PhaseMeta[];
  /** When the repetitions are over: the end of the enclosing phase or of the last repetition. */
  readonly end: number;
}

/** Phases that repeat under one parent: by `step` at any depth, by `micro_batch` inside one step. */
function seriesOf(spans: readonly PhaseSpan[]): Series[] {
  const groups = new Map<string, PhaseMeta[]>();
  for (const { phase } of spans) {
    for (const per of ['step', 'micro_batch'] as const) {
      if (typeof phase.labels[per] !== 'number') continue;
      // Other labels (chunk, stage) tell series apart.
      const others = Object.entries(phase.labels).filter(([key]) => key !== per);
      const key = `${per} ${phase.parent} ${phase.name} ${JSON.stringify(others)}`;
      const group = groups.get(key);
      if (group === undefined) groups.set(key, [phase]);
      else group.push(phase);
      break;
    }
  }
  const series: Series[] = [];
  for (const [key, phases] of groups) {
    if (phases.length < 2) continue;
    const per = key.startsWith('step ') ? 'step' : 'micro_batch';
    const used = phases.slice(0, MAX_REPETITIONS);
    series.push({ per, spans: used, end: endOfSiblings(spans, phases) });
  }
  return series;
}

/** The last event of any sibling that belongs to the same repetitions (forwards and backwards may be phases of their own). */
function endOfSiblings(spans: readonly PhaseSpan[], phases: readonly PhaseMeta[]): number {
  let end = 0;
  for (const { phase } of spans) {
    if (phase.parent !== phases[0].parent) continue;
    if (typeof phase.labels.micro_batch === 'number' || phases.includes(phase)) {
      end = Math.max(end, phase.endEvent);
    }
  }
  return end;
}

function growthIn(timeline: Timeline, series: Series): Growth[] {
  const places = new Places();
  const ends = series.spans.map((phase) => phase.endEvent);
  const snapshots: Float64Array[] = [];
  const stops = [...ends, Math.max(series.end, ends[ends.length - 1])];
  const { events, storageCount } = timeline.trace;
  const placeOf = new Int32Array(storageCount).fill(-1);
  const bytesOf = new Float64Array(storageCount);
  let next = 0;
  for (let i = 0; i < timeline.length && next < stops.length; i++) {
    const code = events.code[i];
    if (
      (code === ALLOC || code === FREE || code === RESIZE) &&
      events.device[i] === timeline.deviceId
    ) {
      const storage = events.subject[i];
      if (placeOf[storage] >= 0) places.live[placeOf[storage]] -= bytesOf[storage];
      if (code === FREE) {
        placeOf[storage] = -1;
      } else {
        placeOf[storage] = places.at(events.op[i], events.stack[i], events.module[i]);
        bytesOf[storage] = timeline.blockBytes[i];
        places.live[placeOf[storage]] += bytesOf[storage];
      }
    }
    while (next < stops.length && i === stops[next]) {
      snapshots.push(Float64Array.from(places.live));
      next++;
    }
  }
  const after = snapshots.pop();
  if (after === undefined || snapshots.length < 2) return [];
  const growth: Growth[] = [];
  const least = snapshots.length === 2 ? MIN_BYTES_ONCE : MIN_BYTES;
  for (let place = 0; place < places.live.length; place++) {
    const levels = snapshots.map((snapshot) => snapshot[place] ?? 0);
    const first = levels[0];
    let rises = true;
    for (let r = 1; r < levels.length; r++) {
      if (levels[r] - levels[r - 1] < least) rises = false;
    }
    const kept = (after[place] ?? 0) >= levels[levels.length - 1];
    if (!rises || !kept) continue;
    growth.push({
      per: series.per,
      phase: series.spans[0],
      ...places.describe(place),
      bytesEach: (levels[levels.length - 1] - first) / (levels.length - 1),
      repetitions: levels.length - 1,
    });
  }
  return growth;
}

/** Allocating places, numbered as they are met. */
class Places {
  /** Bytes live now, by place. */
  readonly live: number[] = [];
  readonly #numbers = new Map<number, number>();
  readonly #described: { op: number; stack: number; module: number }[] = [];

  at(op: number, stack: number, module: number): number {
    const key = stack * 2 ** 21 + op;
    let place = this.#numbers.get(key);
    if (place === undefined) {
      place = this.live.length;
      this.#numbers.set(key, place);
      this.live.push(0);
      this.#described.push({ op, stack, module });
    }
    return place;
  }

  describe(place: number): { op: number; stack: number; module: number } {
    return this.#described[place];
  }
}
