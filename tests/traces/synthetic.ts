// Writes traces that look like training: a decoder of repeated layers under FSDP2, micro-batches, an optimizer whose state comes in
// its first step. Sizes are round numbers, so that a test can say what a report must show. Not a model of any real job.

import { encodeBatch, toTuple } from '../../src/protocol/codec.ts';
import {
  type EventTuple,
  OWNERS,
  type Owner,
  PASSES,
  type Pass,
  type SidecarEvent,
} from '../../src/protocol/events.ts';
import { TraceBuilder } from '../../src/trace/builder.ts';
import type { TraceFooter, TraceHeader } from '../../src/trace/file_format.ts';
import type { Trace } from '../../src/trace/trace.ts';
import { TraceWriter } from '../../src/trace/writer.ts';

const MiB = 1024 * 1024;
/** Events in one batch, as the sidecar sends them. */
const BATCH = 4096;

export interface SyntheticJob {
  readonly layers: number;
  readonly steps: number;
  readonly microBatches: number;
  /** Temporaries that each layer makes and drops in a forward and in a backward: scales the number of events. */
  readonly temporaries: number;
  /** MiB of one layer's parameters on this rank. */
  readonly shardMiB: number;
  readonly world: number;
  readonly rank: number;
  /** MiB of the activation that a layer saves. */
  readonly savedMiB: number;
  /** MiB that each step leaves behind; a reference cycle or a list of losses. */
  readonly leakMiB: number;
  /** Names of FSDP1 and checkpoint wrappers in the module names. */
  readonly wrapped: boolean;
}

export const SMALL_JOB: SyntheticJob = {
  layers: 4,
  steps: 2,
  microBatches: 2,
  temporaries: 2,
  shardMiB: 8,
  world: 8,
  rank: 0,
  savedMiB: 16,
  leakMiB: 0,
  wrapped: false,
};

/** About a million events: 32 layers, as many temporaries as that takes. */
export const MILLION_EVENT_JOB: SyntheticJob = {
  ...SMALL_JOB,
  layers: 32,
  steps: 4,
  microBatches: 4,
  temporaries: 478,
};

export function syntheticHeader(job: SyntheticJob): TraceHeader {
  return {
    created: '2026-01-01T00:00:00.000Z',
    memtracker: '0.0.0',
    run: 'synthetic-run',
    framework: 'synthetic',
    checkout: null,
    argv: [],
    world: job.world,
    rank: job.rank,
    gpus_per_node: 8,
    gpu: {
      id: 'h100-80gb',
      name: 'NVIDIA H100 80GB HBM3',
      capability: [9, 0],
      total_memory: 85_029_158_912,
      multi_processor_count: 132,
    },
    steps: job.steps,
    options: {},
    source: {},
    environment: {},
    origin: 'scenario',
  };
}

const FOOTER: TraceFooter = {
  status: 'done',
  exit_code: 0,
  signal: null,
  batches: 0,
  events: 0,
  faults: [],
  stderr_tail: '',
  wall_seconds: 0,
  worker_peak_rss: null,
};

/** The trace in memory. */
export function syntheticTrace(job: Partial<SyntheticJob> = {}): Trace {
  const whole = { ...SMALL_JOB, ...job };
  const builder = new TraceBuilder(syntheticHeader(whole));
  for (const tuple of trainingEvents(whole)) builder.push(tuple);
  return builder.finish(FOOTER);
}

/** The trace as a file. Returns the number of wire events. */
export async function writeSyntheticTrace(
  path: string,
  job: Partial<SyntheticJob> = {},
): Promise<number> {
  const whole = { ...SMALL_JOB, ...job };
  const writer = await TraceWriter.create(path, syntheticHeader(whole));
  let sequence = 0;
  let count = 0;
  let events: EventTuple[] = [];
  const flush = async () => {
    await writer.batch(encodeBatch({ run: 'synthetic-run', sequence: sequence++, events }));
    events = [];
  };
  for (const tuple of trainingEvents(whole)) {
    events.push(tuple);
    count++;
    if (events.length === BATCH) await flush();
  }
  await flush();
  await writer.close({ ...FOOTER, batches: sequence, events: count });
  return count;
}

const DEVICE = 0;
const COMPUTE = 0;
const GATHER = 1;

/** Hands out identifiers and writes tables before their first use, as the sidecar does. */
class EventScript {
  readonly #out: EventTuple[] = [];
  readonly #strings = new Map<string, number>();
  readonly #stacks = new Map<string, number>();
  readonly #tensors = new Map<string, number>();
  readonly #modules = new Map<string, number>();
  #storages = 0;
  #phases = 0;
  #time = 0;
  #sent = 0;

  /** What was written since the last call. */
  drain(): EventTuple[] {
    return this.#out.splice(0);
  }

  emit(event: SidecarEvent): void {
    this.#sent++;
    this.#time += 5;
    this.#out.push(toTuple(event));
  }

  string(text: string): number {
    return this.#intern(this.#strings, text, (id) => this.emit({ type: 'string', id, text }));
  }

  /** Frames outermost first, each `file:line function`. */
  stack(...frames: string[]): number {
    let parent = 0;
    let key = '';
    for (const frame of frames) {
      key += `\n${frame}`;
      const [, file, line, name] = /^(.*):(\d+) (.*)$/.exec(frame) as unknown as string[];
      const [fileId, nameId] = [this.string(file), this.string(name)];
      const above = parent;
      parent = this.#intern(this.#stacks, key, (id) =>
        this.emit({
          type: 'stack',
          id,
          parent: above,
          file: fileId,
          function: nameId,
          line: Number(line),
        }),
      );
    }
    return parent;
  }

  tensor(dtype: string, shape: number[]): number {
    const [dtypeId, layout] = [this.string(dtype), this.string('strided')];
    return this.#intern(this.#tensors, `${dtype} ${shape}`, (id) =>
      this.emit({ type: 'tensor', id, dtype: dtypeId, layout, shape }),
    );
  }

  module(name: string, className: string, parent: number): number {
    const [nameId, classId] = [this.string(name), this.string(className)];
    return this.#intern(this.#modules, name, (id) =>
      this.emit({ type: 'module', id, parent, name: nameId, class: classId }),
    );
  }

  begin(name: string, labels: Record<string, number> = {}): number {
    const phase = ++this.#phases;
    this.emit({ type: 'phase_begin', phase, name, labels, time: this.#time });
    return phase;
  }

  end(phase: number): void {
    this.emit({ type: 'phase_end', phase, time: this.#time });
  }

  alloc(
    mib: number,
    at: { op: string; stack: number; module?: number; pass?: Pass; stream?: number },
  ): number {
    const storage = ++this.#storages;
    const bytes = Math.round(mib * MiB);
    const tensor = this.tensor('bfloat16', [bytes / 2048, 1024]);
    this.emit({
      type: 'alloc',
      storage,
      bytes,
      device: DEVICE,
      stream: at.stream ?? COMPUTE,
      pool: 0,
      op: this.string(at.op),
      stack: at.stack,
      module: at.module ?? 0,
      pass: PASSES.indexOf(at.pass ?? 'none'),
      tensor,
    });
    return storage;
  }

  own(storage: number, owner: Owner, name: string): void {
    const category = OWNERS.indexOf(owner);
    this.emit({ type: 'owner', storage, category, name: this.string(name) });
  }

  free(storage: number): void {
    this.emit({ type: 'free', storage });
  }

  close(): void {
    this.emit({ type: 'close', status: 'done', events: this.#sent + 1, counts: {} });
  }

  #intern(table: Map<string, number>, key: string, write: (id: number) => void): number {
    let id = table.get(key);
    if (id === undefined) {
      id = table.size + 1;
      table.set(key, id);
      write(id);
    }
    return id;
  }
}

interface Layer {
  readonly name: string;
  readonly attention: number;
  readonly feedForward: number;
  readonly shard: number;
}

function* trainingEvents(job: SyntheticJob): Generator<EventTuple> {
  const script = new EventScript();
  script.emit({
    type: 'device',
    id: DEVICE,
    kind: 'cuda',
    index: 0,
    name: 'NVIDIA H100 80GB HBM3',
    properties: {},
  });
  const main = 'train.py:10 main';
  const forward = 'train.py:40 train_step';
  const attentionStack = script.stack(main, forward, 'model.py:120 forward');
  const feedForwardStack = script.stack(main, forward, 'model.py:160 forward');
  const backwardStack = script.stack(main, 'train.py:44 train_step');
  const initStack = script.stack(main, 'model.py:20 __init__');
  const gatherStack = script.stack(main, forward, 'torch/distributed/fsdp/param.py:300 unshard');
  const optimizerStack = script.stack(
    main,
    'train.py:50 train_step',
    'torch/optim/adam.py:80 step',
  );
  const leakStack = script.stack(main, 'metrics.py:12 append');

  const init = script.begin('init/model');
  const root = script.module('', 'Transformer', 0);
  const layers: Layer[] = [];
  for (let i = 0; i < job.layers; i++) {
    const clean = `layers.${i}`;
    const name = job.wrapped ? `${clean}._checkpoint_wrapped_module` : clean;
    const block = script.module(name, 'TransformerBlock', root);
    const attention = script.module(`${name}.attention`, 'Attention', block);
    const feedForward = script.module(`${name}.feed_forward`, 'FeedForward', block);
    const shard = script.alloc(job.shardMiB, { op: 'aten.empty', stack: initStack, module: block });
    script.own(shard, 'parameter', `${clean}.weight`);
    layers.push({ name: clean, attention, feedForward, shard });
  }
  script.end(init);
  yield* script.drain();

  const states: number[] = [];
  for (let step = 1; step <= job.steps; step++) {
    const stepPhase = script.begin('step', { step });
    const gradients: (number | undefined)[] = layers.map(() => undefined);
    for (let micro = 0; micro < job.microBatches; micro++) {
      const phase = script.begin('forward_backward', { micro_batch: micro });
      const input = script.alloc(1, { op: 'aten._to_copy', stack: script.stack(main, forward) });
      script.own(input, 'input', 'tokens');
      const saved: [number, number][] = [];
      const forwardPhase = script.begin('forward');
      for (const layer of layers) {
        const gathered = gather(script, job, layer, gatherStack);
        const attention = script.alloc(job.savedMiB, {
          op: 'aten.mm',
          stack: attentionStack,
          module: layer.attention,
          pass: 'forward',
        });
        script.own(attention, 'activation', `${layer.name}.attention`);
        yield* temporaries(script, job, layer.attention, attentionStack, 'forward');
        const feedForward = script.alloc(job.savedMiB * 2, {
          op: 'aten.mm',
          stack: feedForwardStack,
          module: layer.feedForward,
          pass: 'forward',
        });
        script.own(feedForward, 'activation', `${layer.name}.feed_forward`);
        saved.push([attention, feedForward]);
        script.free(gathered);
        yield* script.drain();
      }
      script.end(forwardPhase);
      const backwardPhase = script.begin('backward');
      for (let i = layers.length - 1; i >= 0; i--) {
        const layer = layers[i];
        const gathered = gather(script, job, layer, gatherStack);
        yield* temporaries(script, job, layer.feedForward, backwardStack, 'backward');
        const whole = script.alloc(job.shardMiB * job.world, {
          op: 'aten.mm',
          stack: backwardStack,
          module: layer.feedForward,
          pass: 'backward',
        });
        script.own(whole, 'gradient', `${layer.name}.weight`);
        for (const storage of saved[i]) script.free(storage);
        if (gradients[i] === undefined) {
          const shard = script.alloc(job.shardMiB, {
            op: 'c10d._reduce_scatter_base_',
            stack: backwardStack,
            module: layer.feedForward,
            pass: 'backward',
            stream: GATHER,
          });
          script.own(shard, 'gradient', `${layer.name}.weight`);
          gradients[i] = shard;
        }
        script.free(whole);
        script.free(gathered);
        yield* script.drain();
      }
      script.end(backwardPhase);
      script.free(input);
      script.end(phase);
    }
    const optimizer = script.begin('optimizer');
    for (const [i, layer] of layers.entries()) {
      if (step === 1) {
        for (const name of ['exp_avg', 'exp_avg_sq']) {
          const state = script.alloc(job.shardMiB, {
            op: 'aten.zeros_like',
            stack: optimizerStack,
            pass: 'optimizer',
          });
          script.own(state, 'optimizer_state', `${layer.name}.weight.${name}`);
          states.push(state);
        }
      }
      const temporary = script.alloc(job.shardMiB, {
        op: 'aten.sqrt',
        stack: optimizerStack,
        pass: 'optimizer',
      });
      script.free(temporary);
      const gradient = gradients[i];
      if (gradient !== undefined) script.free(gradient);
    }
    script.end(optimizer);
    if (job.leakMiB > 0) script.alloc(job.leakMiB, { op: 'aten.stack', stack: leakStack });
    script.end(stepPhase);
    yield* script.drain();
  }
  script.close();
  yield* script.drain();
}

/** The whole layer on every rank, taken on the all-gather stream and used on the compute stream. */
function gather(script: EventScript, job: SyntheticJob, layer: Layer, stack: number): number {
  const gathered = script.alloc(job.shardMiB * job.world, {
    op: 'c10d._allgather_base_',
    stack,
    stream: GATHER,
  });
  script.own(gathered, 'unsharded_parameter', layer.name);
  script.emit({ type: 'record_stream', storage: gathered, stream: COMPUTE });
  return gathered;
}

function* temporaries(
  script: EventScript,
  job: SyntheticJob,
  module: number,
  stack: number,
  pass: Pass,
): Generator<EventTuple> {
  for (let i = 0; i < job.temporaries; i++) {
    script.free(script.alloc(1 + (i % 7), { op: 'aten.mul', stack, module, pass }));
  }
  yield* script.drain();
}
