// Where a worker is, for a person who waits: phase, step, events and the highest sum of live storages so far. It looks at
// each event once as it passes by; the exact figures come from the replay of the trace.

import { formatBytes } from '../base/bytes.ts';
import { EVENTS, type EventTuple, type Fields } from '../protocol/events.ts';

const CODE = {
  device: EVENTS.device.code,
  alloc: EVENTS.alloc.code,
  free: EVENTS.free.code,
  resize: EVENTS.resize.code,
  phaseBegin: EVENTS.phase_begin.code,
  phaseEnd: EVENTS.phase_end.code,
  progress: EVENTS.progress.code,
} as const;

export class LiveProgress {
  events = 0;
  /** Highest sum of live CUDA storages so far, bytes as requested. */
  livePeak = 0;
  #live = 0;
  readonly #bytes = new Map<number, number>();
  /** Only storages of these devices are counted. */
  readonly #cudaDevices = new Set<number>();
  readonly #phases: { id: number; text: string }[] = [];
  readonly #steps: number;
  #step = 0;
  #said = '';

  /** @param steps optimizer steps that the run will make. */
  constructor(steps: number) {
    this.#steps = steps;
  }

  see(events: readonly EventTuple[]): void {
    this.events += events.length;
    for (const event of events) this.#one(event);
  }

  #one(event: EventTuple): void {
    switch (event[0]) {
      case CODE.alloc:
        if (this.#cudaDevices.has(event[3] as number)) {
          this.#bytes.set(event[1] as number, event[2] as number);
          this.#grow(event[2] as number);
        }
        return;
      case CODE.free: {
        const size = this.#bytes.get(event[1] as number);
        if (size === undefined) return;
        this.#bytes.delete(event[1] as number);
        this.#live -= size;
        return;
      }
      case CODE.resize: {
        const size = this.#bytes.get(event[1] as number);
        if (size === undefined) return;
        this.#bytes.set(event[1] as number, event[2] as number);
        this.#grow((event[2] as number) - size);
        return;
      }
      case CODE.device:
        if (event[2] === 'cuda') this.#cudaDevices.add(event[1] as number);
        return;
      case CODE.phaseBegin: {
        const labels = event[3] as Fields;
        if (typeof labels.step === 'number') this.#step = labels.step;
        const text = phaseText(event[2] as string, labels);
        this.#phases.push({ id: event[1] as number, text });
        return;
      }
      case CODE.phaseEnd: {
        const at = this.#phases.findIndex((phase) => phase.id === event[1]);
        if (at >= 0) this.#phases.length = at;
        return;
      }
      case CODE.progress:
        this.#said = event[1] as string;
        return;
    }
  }

  #grow(bytes: number): void {
    this.#live += bytes;
    if (this.#live > this.livePeak) this.livePeak = this.#live;
  }

  /** `rank 3: step 1/2, forward_backward, 120,004 events, live peak 23.42 GiB` */
  line(label: string): string {
    const parts: string[] = [];
    if (this.#step > 0) parts.push(`step ${this.#step}/${this.#steps}`);
    const phase = this.#phases.at(-1)?.text ?? this.#said;
    if (phase !== '') parts.push(phase);
    if (this.events > 0) {
      parts.push(`${this.events.toLocaleString('en-US')} events`);
      parts.push(`live peak ${formatBytes(this.livePeak)}`);
    } else parts.push('starting Python');
    return `${label}: ${parts.join(', ')}`;
  }
}

function phaseText(name: string, labels: Fields): string {
  const text = Object.entries(labels).map(([key, value]) => `${key}=${String(value)}`);
  return text.length === 0 ? name : `${name}[${text.join(',')}]`;
}
