// speedscope (speedscope.app): bytes live at one instant as two sampled profiles, by Python stack and by module.
// Format: jlfwong/speedscope, src/lib/file-format-spec.ts (0.0.1).

import { NO_MODULE } from '../../attribution/attribution.ts';
import { framesOf } from '../../trace/trace.ts';
import type { ExportFormat } from './format.ts';

interface SpeedscopeFrame {
  readonly name: string;
  readonly file?: string;
  readonly line?: number;
}

export const speedscope: ExportFormat = {
  name: 'speedscope',
  extension: 'speedscope.json',
  description: 'bytes live at a peak by stack and by module: speedscope.app',
  *write({ trace }, device, { at }) {
    const attribution =
      typeof at === 'number' ? device.attributionAt(at) : device.attributionAtPeak(at);
    const frames = new FrameTable();
    const byStack: Samples = { samples: [], weights: [] };
    for (const { stack, op, bytes } of attribution.stacks) {
      const sample = framesOf(trace, stack)
        .reverse()
        .map((frame) => frames.id({ name: frame.function, file: frame.file, line: frame.line }));
      sample.push(frames.id({ name: trace.strings[op] ?? '' }));
      byStack.samples.push(sample);
      byStack.weights.push(bytes);
    }
    const byModule: Samples = { samples: [], weights: [] };
    for (const { name, own } of attribution.modules) {
      if (own.bytes === 0) continue;
      const parts = name === '' || name === NO_MODULE ? [] : name.split('.');
      const root = name === NO_MODULE ? NO_MODULE : '(root)';
      byModule.samples.push([root, ...parts].map((part) => frames.id({ name: part })));
      byModule.weights.push(own.bytes);
    }
    const origin = trace.header.origin === 'measured' ? 'measured' : 'predicted';
    const title = `${device.name}, rank ${trace.header.rank}: ${origin} bytes live at event ${attribution.event}`;
    yield JSON.stringify({
      $schema: 'https://www.speedscope.app/file-format-schema.json',
      name: title,
      exporter: `memtracker@${trace.header.memtracker}`,
      activeProfileIndex: 0,
      shared: { frames: frames.list },
      profiles: [profile(`${title}, by stack`, byStack), profile(`${title}, by module`, byModule)],
    });
  },
};

interface Samples {
  readonly samples: number[][];
  readonly weights: number[];
}

function profile(name: string, { samples, weights }: Samples) {
  return {
    type: 'sampled',
    name,
    unit: 'bytes',
    startValue: 0,
    endValue: weights.reduce((sum, weight) => sum + weight, 0),
    samples,
    weights,
  };
}

class FrameTable {
  readonly list: SpeedscopeFrame[] = [];
  readonly #ids = new Map<string, number>();

  id(frame: SpeedscopeFrame): number {
    const key = `${frame.name}\n${frame.file ?? ''}\n${frame.line ?? ''}`;
    let id = this.#ids.get(key);
    if (id === undefined) {
      id = this.list.length;
      this.#ids.set(key, id);
      this.list.push(frame);
    }
    return id;
  }
}
