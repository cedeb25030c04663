// How far each CUDA stream has come. The allocator records an event on a stream and later asks whether the stream
// has passed it. Streams are shared by all devices of a process.

/**
 * When a recorded event is complete:
 * - `at_once`: as soon as it is recorded, as if kernels took no time;
 * - `on_request`: when the owner of the clock says that the stream has come this far.
 */
export type EventCompletion = 'at_once' | 'on_request';

interface Progress {
  recorded: number;
  completed: number;
}

export class StreamClock {
  readonly completion: EventCompletion;
  readonly #streams = new Map<number, Progress>();

  constructor(completion: EventCompletion = 'at_once') {
    this.completion = completion;
  }

  /** Records an event (cudaEventRecord). @returns its ticket on the stream */
  record(stream: number): number {
    let progress = this.#streams.get(stream);
    if (progress === undefined) {
      progress = { recorded: 0, completed: 0 };
      this.#streams.set(stream, progress);
    }
    progress.recorded++;
    if (this.completion === 'at_once') progress.completed = progress.recorded;
    return progress.recorded;
  }

  /** cudaEventQuery. */
  isComplete(stream: number, ticket: number): boolean {
    return (this.#streams.get(stream)?.completed ?? 0) >= ticket;
  }

  /** The stream passes the event (cudaEventSynchronize). */
  completeUpTo(stream: number, ticket: number): void {
    const progress = this.#streams.get(stream);
    if (progress !== undefined) progress.completed = Math.max(progress.completed, ticket);
  }

  /** The stream passes every event recorded so far (cudaStreamSynchronize). */
  complete(stream: number): void {
    const progress = this.#streams.get(stream);
    if (progress !== undefined) progress.completed = progress.recorded;
  }

  /** Every stream does (cudaDeviceSynchronize). */
  completeAll(): void {
    for (const progress of this.#streams.values()) progress.completed = progress.recorded;
  }
}
