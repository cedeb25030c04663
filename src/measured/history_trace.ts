// A recorded history as a trace: the same events that a sidecar sends, so that everything behind the trace (timeline,
// attribution, reports, comparison) sees one model. What a history has and a trace has not (block addresses, segments, completion
// of frees) stays with the recording; RecordedDevice plays it back.

import { MiB } from '../base/bytes.ts';
import { EVENTS, type Fields, OWNERS, type Owner, PASSES } from '../protocol/events.ts';
import { TraceBuilder } from '../trace/builder.ts';
import type { TraceHeader } from '../trace/file_format.ts';
import type { Trace } from '../trace/trace.ts';
import type { History } from './history/history.ts';
import { isNative, operatorOf, passOf } from './native_frames.ts';
import { RecordedSteps } from './recorded_device.ts';
import { ActionCode } from './snapshot/snapshot.ts';

/** The phase that holds what was allocated before the history begins. */
export const BEFORE_HISTORY = 'before_history';

/** Stands before the history row `row`. Times in microseconds since 1970. */
export type Mark =
  | {
      readonly kind: 'begin';
      readonly row: number;
      readonly name: string;
      readonly labels: Fields;
      readonly time: number;
    }
  | {
      readonly kind: 'end';
      readonly row: number;
      readonly time: number;
      /** An exception ended the phase. */
      readonly failed?: boolean;
    }
  /** A reading of the driver: bytes used on the device outside of the caching allocator. */
  | {
      readonly kind: 'external';
      readonly row: number;
      readonly bytes: number;
      readonly detail: Fields;
    }
  | {
      readonly kind: 'owner';
      readonly row: number;
      readonly address: number;
      readonly owner: Owner;
      readonly name: string;
    };

export interface DeviceFacts {
  readonly index: number;
  readonly name: string;
  readonly properties: Fields;
}

export interface HistoryTrace {
  readonly trace: Trace;
  readonly deviceId: number;
  readonly steps: RecordedSteps;
  /** Phases that an out-of-memory or another error ended or happened in, by id; their figures are lower bounds. */
  readonly censored: ReadonlySet<number>;
}

const DEVICE = 1;
const A = ActionCode;

/** Builds the trace of `history`. `marks` are in order of their rows. Throws nothing that the history's reader has not. */
export function traceOfHistory(
  history: History,
  header: TraceHeader,
  device: DeviceFacts,
  marks: readonly Mark[],
  run: ReadonlyMap<string, Fields> = new Map(),
): HistoryTrace {
  return new HistoryTracer(history, header, device).build(marks, run);
}

class HistoryTracer {
  readonly #history: History;
  readonly #builder: TraceBuilder;
  readonly #steps = new RecordedSteps();
  readonly #strings = new Map<string, number>();
  readonly #stacks = new Map<number, { node: number; op: number; pass: number }>();
  readonly #nodes = new Map<string, number>();
  readonly #openPhases: number[] = [];
  readonly #censored = new Set<number>();
  #events = 0;
  #nodeCount = 0;
  #phases = 0;
  #externalOpen = false;
  readonly #device: DeviceFacts;

  constructor(history: History, header: TraceHeader, device: DeviceFacts) {
    this.#history = history;
    this.#device = device;
    this.#builder = new TraceBuilder(header);
  }

  build(marks: readonly Mark[], run: ReadonlyMap<string, Fields>): HistoryTrace {
    const history = this.#history;
    const { entries } = history.snapshot;
    const last = history.first + history.count;
    const action = entries.action.view().subarray(history.first, last);
    const address = entries.address.view().subarray(history.first, last);
    const size = entries.size.view().subarray(history.first, last);
    const stack = entries.stack.view().subarray(history.first, last);
    const stream = entries.stream.view().subarray(history.first, last);
    const time = entries.time.view().subarray(history.first, last);
    const start = time[0] ?? 0;
    const since = (at: number): number => Math.max(0, Math.round(at - start));
    const streamIds = streamNumbers(entries.streams);

    this.#push(
      EVENTS.device.code,
      DEVICE,
      'cuda',
      this.#device.index,
      this.#device.name,
      this.#device.properties,
    );
    for (const [topic, facts] of run) this.#push(EVENTS.run.code, topic, facts);

    const storageAt = new Map<number, number>();
    const storageOfRow = new Uint32Array(history.count);
    let storages = this.#baseline(storageAt, streamIds);
    let next = 0;
    const ending = terminalOutOfMemory(history, action);
    const end = ending ?? history.count;
    const markUpTo = (row: number): void => {
      for (; next < marks.length && marks[next].row <= row; next++) {
        this.#mark(marks[next], since, storageAt);
      }
    };

    for (let row = 0; row < end; row++) {
      markUpTo(row);
      switch (action[row]) {
        case A.alloc: {
          const storage = ++storages;
          storageOfRow[row] = storage;
          storageAt.set(address[row], storage);
          const low = history.blockLow[row];
          this.#steps.push(row + 1, low === history.blockHigh[row] ? low : Number.NaN);
          this.#alloc(storage, size[row], streamIds[stream[row]], stack[row]);
          break;
        }
        case A.free_requested: {
          const target = history.target[row];
          const storage = target >= 0 ? storageOfRow[target] : -target;
          const done = action[row + 1] === A.free_completed && address[row + 1] === address[row];
          this.#steps.push(done ? row + 2 : row + 1);
          this.#push(EVENTS.free.code, storage);
          storageAt.delete(address[row]);
          break;
        }
        case A.segment_free:
        case A.segment_unmap:
          if (action[row + 1] === A.segment_free || action[row + 1] === A.segment_unmap) break;
          this.#steps.push(row + 1);
          this.#push(EVENTS.empty_cache.code, DEVICE);
          break;
        case A.oom:
          for (const phase of this.#openPhases) this.#censored.add(phase);
          this.#push(
            EVENTS.error.code,
            'torch.OutOfMemoryError',
            outOfMemoryText(size[row], address[row]),
            '',
            {},
            false,
          );
          break;
      }
    }
    if (ending === undefined) {
      markUpTo(history.count);
      this.#steps.push(history.count);
      this.#push(EVENTS.device_synchronize.code, DEVICE);
    } else {
      for (const phase of this.#openPhases) this.#censored.add(phase);
      const message = outOfMemoryText(size[ending], address[ending]);
      this.#steps.pushOutOfMemory(ending, size[ending], message);
      this.#alloc(++storages, size[ending], streamIds[stream[ending]], stack[ending]);
      this.#push(EVENTS.error.code, 'torch.OutOfMemoryError', message, '', {}, true);
    }
    while (this.#openPhases.length > 0) this.#endPhase(since(time[end - 1] ?? start));
    this.#push(EVENTS.close.code, 'done', this.#events + 1, {});
    return {
      trace: this.#builder.finish(null),
      deviceId: DEVICE,
      steps: this.#steps,
      censored: this.#censored,
    };
  }

  /** Blocks that were there before: storages 1 to n, inside a phase of their own. Returns n. */
  #baseline(storageAt: Map<number, number>, streamIds: readonly number[]): number {
    const { baselineBlocks } = this.#history;
    if (baselineBlocks.length === 0) return 0;
    this.#beginPhase(BEFORE_HISTORY, {}, 0);
    baselineBlocks.forEach((block, index) => {
      // One that waits for a stream belongs to nobody any more: it counts as active, without a storage.
      if (block.pending) return;
      this.#steps.push(-1 - index, block.low === block.high ? block.low : Number.NaN);
      this.#alloc(index + 1, block.requested, streamIds[0] ?? 0, block.stack);
      storageAt.set(block.address, index + 1);
    });
    this.#endPhase(0);
    return baselineBlocks.length;
  }

  #mark(mark: Mark, since: (time: number) => number, storageAt: ReadonlyMap<number, number>): void {
    switch (mark.kind) {
      case 'begin':
        this.#beginPhase(mark.name, mark.labels, since(mark.time));
        this.#endReading();
        return;
      case 'end': {
        const open = this.#openPhases.at(-1);
        if (mark.failed === true && open !== undefined) this.#censored.add(open);
        this.#endPhase(since(mark.time));
        this.#endReading();
        return;
      }
      case 'external':
        this.#endReading();
        this.#push(
          EVENTS.external_alloc.code,
          'device memory outside the allocator',
          DEVICE,
          'measured',
          mark.bytes,
          mark.detail,
        );
        this.#externalOpen = true;
        return;
      case 'owner': {
        const storage = storageAt.get(mark.address);
        if (storage === undefined) return;
        const owner = OWNERS.indexOf(mark.owner);
        this.#push(EVENTS.owner.code, storage, owner, this.#string(mark.name));
        return;
      }
    }
  }

  /** A reading holds for its instant, not until the next one. */
  #endReading(): void {
    if (!this.#externalOpen) return;
    this.#externalOpen = false;
    this.#push(EVENTS.external_free.code, 'device memory outside the allocator');
  }

  #beginPhase(name: string, labels: Fields, time: number): void {
    const phase = ++this.#phases;
    this.#openPhases.push(phase);
    this.#push(EVENTS.phase_begin.code, phase, name, labels, time);
  }

  #endPhase(time: number): void {
    const phase = this.#openPhases.pop();
    if (phase !== undefined) this.#push(EVENTS.phase_end.code, phase, time);
  }

  #alloc(storage: number, bytes: number, stream: number, stack: number): void {
    const { node, op, pass } = this.#stack(stack);
    this.#push(EVENTS.alloc.code, storage, bytes, DEVICE, stream, 0, op, node, 0, pass, 0);
  }

  /** The snapshot's stack as a node of the trace's: Python frames only, unless there are none. */
  #stack(stack: number): { node: number; op: number; pass: number } {
    let known = this.#stacks.get(stack);
    if (known !== undefined) return known;
    const frames = this.#history.snapshot.stacks.framesOf(stack);
    const operator = operatorOf(frames);
    const python = frames.filter((frame) => !isNative(frame));
    let node = 0;
    for (const frame of (python.length > 0 ? python : frames).reverse()) {
      const file = this.#string(frame.filename);
      const name = this.#string(frame.name);
      const key = `${node},${file},${name},${frame.line}`;
      let child = this.#nodes.get(key);
      if (child === undefined) {
        child = ++this.#nodeCount;
        this.#nodes.set(key, child);
        this.#push(EVENTS.stack.code, child, node, file, name, frame.line);
      }
      node = child;
    }
    known = { node, op: this.#string(operator), pass: PASSES.indexOf(passOf(frames)) };
    this.#stacks.set(stack, known);
    return known;
  }

  #string(text: string): number {
    if (text === '') return 0;
    let id = this.#strings.get(text);
    if (id === undefined) {
      id = this.#strings.size + 1;
      this.#strings.set(text, id);
      this.#push(EVENTS.string.code, id, text);
    }
    return id;
  }

  #push(code: number, ...fields: unknown[]): void {
    this.#events++;
    this.#builder.push([code, ...fields]);
  }
}

/** The out-of-memory entry that ended the run: nothing was allocated after it. */
function terminalOutOfMemory(history: History, action: Uint8Array): number | undefined {
  const last = history.outOfMemory.at(-1);
  if (last === undefined) return undefined;
  for (let row = last.row + 1; row < history.count; row++) {
    if (action[row] === A.alloc) return undefined;
  }
  return last.row;
}

/** What the entry says, in the words of torch's own error. */
function outOfMemoryText(size: number, deviceFree: number): string {
  const mib = (bytes: number): string => `${(bytes / MiB).toFixed(2)} MiB`;
  return `CUDA out of memory, as recorded: ${mib(size)} were asked for with ${mib(deviceFree)} free on the device.`;
}

/** Streams as small numbers: 0 is the null stream, others in order of appearance. */
function streamNumbers(streams: readonly number[]): number[] {
  let next = 1;
  return streams.map((stream) => (stream === 0 ? 0 : next++));
}
