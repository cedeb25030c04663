// The live view of a fit: a line a running worker and a bar over all units.

import type { TraceRequest, UnitProgress } from '../fit/executor.ts';
import type { Output } from './output.ts';

const BAR = 24;

export class FitProgress {
  readonly #output: Output;
  readonly #states = new Map<string, { request: TraceRequest; progress: UnitProgress }>();

  constructor(output: Output) {
    this.#output = output;
  }

  see(request: TraceRequest, progress: UnitProgress): void {
    const before = this.#states.get(request.key)?.progress.state;
    this.#states.set(request.key, { request, progress });
    const ended = progress.state === 'done' || progress.state === 'failed';
    if (ended && before !== progress.state) {
      this.#output.note(`${request.label}: ${progress.state === 'done' ? 'traced' : 'failed'}`);
    }
    this.#output.progress(this.#lines(), { force: before !== progress.state });
  }

  #lines(): string {
    const all = [...this.#states.values()];
    const ended = all.filter(({ progress }) =>
      ['done', 'failed', 'cached'].includes(progress.state),
    );
    const filled = Math.round((BAR * ended.length) / Math.max(1, all.length));
    const bar = `${'█'.repeat(filled)}${'░'.repeat(BAR - filled)} ${ended.length}/${all.length} traces`;
    const running = all
      .filter(({ progress }) => progress.state === 'running')
      .map(
        ({ request, progress }) =>
          `  ${progress.text === '' ? `${request.label}: starting` : progress.text}`,
      );
    return [bar, ...running].join('\n');
  }
}
