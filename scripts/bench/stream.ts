// How many events a second go from a Python sender through ZeroMQ, the checks of the stream and into a trace file. The sender
// is the sidecar's own Emitter, in a process of its own as in a real run.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { ensureEnvironment } from '../../src/sidecar/environment.ts';
import { LiveProgress } from '../../src/sidecar/live_progress.ts';
import { packageFolder } from '../../src/sidecar/package_folder.ts';
import { EventStream } from '../../src/sidecar/stream.ts';
import { TraceWriter } from '../../src/trace/writer.ts';
import type { Benchmark } from './benchmark.ts';

const EVENTS = 1_500_000;

/** Allocations and frees as a training step makes them: sizes, stacks and modules from a few hundred places. */
const SENDER = `
import random, sys
from memtracker_sidecar import protocol
from memtracker_sidecar.emitter import Emitter
emitter = Emitter(sys.argv[1], sys.argv[2])
emitter.emit(protocol.device(1, "cuda", 0, "benchmark", {}))
random.seed(0)
places = [(random.randrange(512, 1 << 28), random.randrange(40), random.randrange(2000), random.randrange(800), 1) for _ in range(400)]
emit, alloc, free = emitter.emit, protocol.alloc, protocol.free
for storage in range(1, ${EVENTS / 2} + 1):
    size, op, stack, module, pass_ = places[storage % 400]
    emit(alloc(storage, size, 1, 0, 0, op, stack, module, pass_, 3))
    if storage > 300:
        emit(free(storage - 300))
emitter.close("done", {})
`;

export const benchmark: Benchmark = {
  name: 'stream',
  summary: `${EVENTS.toLocaleString('en-US')} events from Python through the socket into a trace file`,
  async run() {
    const { python } = await ensureEnvironment({ env: process.env });
    const folder = await mkdtemp(join(tmpdir(), 'memtracker-bench-'));
    const stream = await EventStream.open();
    try {
      const writer = await TraceWriter.create(join(folder, 'stream.mtrace'), header(stream.run));
      const sender = execa(python, ['-c', SENDER, stream.endpoint, stream.run], {
        env: { PYTHONPATH: packageFolder('python') },
      });
      const progress = new LiveProgress(1);
      let started = 0;
      const summary = await stream.receive({
        frame: async (raw, batch) => {
          started ||= performance.now();
          progress.see(batch.events);
          await writer.batch(raw);
        },
      });
      const seconds = (performance.now() - started) / 1000;
      await sender;
      await writer.abandon();
      if (summary.faults.length > 0) throw new Error(summary.faults.join('; '));
      return [
        {
          what: 'events a second',
          value: summary.events / seconds,
          unit: '1/s',
          limit: { at: 'least', value: 300_000 },
        },
        {
          what: 'trace file, an event',
          value: writer.bytesWritten / summary.events,
          unit: 'bytes',
          limit: { at: 'most', value: 40 },
        },
        { what: 'events', value: summary.events, unit: '' },
      ];
    } finally {
      await stream.close();
      await rm(folder, { recursive: true, force: true });
    }
  },
};

function header(run: string): Parameters<typeof TraceWriter.create>[1] {
  return {
    created: new Date().toISOString(),
    memtracker: 'benchmark',
    run,
    framework: 'script',
    checkout: null,
    argv: [],
    world: 1,
    rank: 0,
    gpus_per_node: 1,
    gpu: {
      id: 'h100-80gb',
      name: 'benchmark',
      capability: [9, 0],
      total_memory: 1,
      multi_processor_count: 1,
    },
    steps: 1,
    options: {},
    source: {},
    environment: {},
    origin: 'scenario',
  };
}
