// The interactive bridge: a TypeScript program holds real `torch` objects and drives them under FakeTensorMode; the same recorder, the
// same stream and the same device model as a traced job see what it does.
//
//   const bridge = await openBridge({ gpu: 'h100-80gb', world: 8 });
//   await bridge.fake(async ({ torch }) => {
//     await bridge.phase('forward', { step: 1 }, async () => { … });
//   });
//   const { resident } = await bridge.report({ allocConf: 'expandable_segments:True' });  // as often as you like
//   await bridge.close();

import { findGpu } from '../device/gpus.ts';
import type { Batch } from '../protocol/codec.ts';
import { type EventTuple, eventCode, type Scalar } from '../protocol/events.ts';
import { workerSpecSchema } from '../protocol/worker_spec.ts';
import { ensureEnvironment } from '../sidecar/environment.ts';
import { packageFolder } from '../sidecar/package_folder.ts';
import { programVersion } from '../sidecar/program_version.ts';
import { BridgeClosedError, Interpreter, type PyObject } from '../sidecar/pythonia.ts';
import { recordedEnvironment } from '../sidecar/source_identity.ts';
import { EventStream, type StreamSummary } from '../sidecar/stream.ts';
import { TraceBuilder } from '../trace/builder.ts';
import type { TraceHeader } from '../trace/file_format.ts';
import type { Trace } from '../trace/trace.ts';
import { checkLabel, Ledger } from './ledger.ts';
import { reportScenario, type ScenarioDevice, type ScenarioReport } from './scenario_report.ts';

export interface BridgeOptions {
  /** A named GPU: what the scenario's `cuda` device pretends to be. Default h100-80gb. */
  readonly gpu?: string;
  /** Ranks of the pretended job, and the rank that is run. Default 1 and 0. */
  readonly world?: number;
  readonly rank?: number;
  readonly gpusPerNode?: number;
  /** Python frames kept for each allocation. Default 24. */
  readonly stackDepth?: number;
  /** A call that takes longer ends the bridge (ms). Default 10 minutes. */
  readonly callTimeout?: number;
  readonly env?: NodeJS.ProcessEnv;
}

/** What `fake` hands to its body. `keep` makes an object outlive the scope. */
export interface FakeScope {
  readonly torch: PyObject;
  readonly nn: PyObject;
  readonly keep: <O>(object: O) => O;
}

export type CollectiveKind = 'all_gather' | 'reduce_scatter' | 'all_reduce' | 'all_to_all';

/** How an entry of the ledger is known; the same words as everywhere. */
export interface ExternalDetail {
  readonly evidence?: 'source' | 'calibrated' | 'assumed';
  readonly provenance?: string;
  readonly [key: string]: Scalar | undefined;
}

const CALL_TIMEOUT = 600_000;
const FLUSH_TIMEOUT = 30_000;

/**
 * Provisions the pinned environment, starts the interpreter and opens the event stream.
 * @throws UserError when there is no usable environment or GPU name; PythonError when the session cannot start.
 */
export async function openBridge(options: BridgeOptions = {}): Promise<Bridge> {
  const env = options.env ?? process.env;
  const gpu = findGpu(options.gpu ?? 'h100-80gb');
  const environment = await ensureEnvironment({ env });
  const stream = await EventStream.open({ env });
  let interpreter: Interpreter | undefined;
  try {
    const world = options.world ?? 1;
    const spec = workerSpecSchema.parse({
      endpoint: stream.endpoint,
      curve: stream.curve,
      run: stream.run,
      adapter: packageFolder('adapters'),
      checkout: null,
      argv: [],
      cwd: process.cwd(),
      world,
      rank: options.rank ?? 0,
      gpus_per_node: options.gpusPerNode ?? Math.min(world, 8),
      gpu: {
        name: gpu.deviceName,
        capability: [...gpu.capability],
        total_memory: gpu.usableBytes,
        multi_processor_count: gpu.multiprocessors,
      },
      steps: 1,
      stack_depth: options.stackDepth ?? 24,
      options: {},
    });
    interpreter = Interpreter.start({
      python: environment.python,
      env: {
        ...env,
        PYTHONPATH: packageFolder('python'),
        PYTHONDONTWRITEBYTECODE: '1',
        MEMTRACKER_PARENT: String(process.pid),
      },
      callTimeout: options.callTimeout ?? CALL_TIMEOUT,
    });
    const module = await interpreter.import('memtracker_sidecar.bridge_session');
    const session = await module.BridgeSession(JSON.stringify(spec));
    const torch = await interpreter.import('torch');
    const header: TraceHeader = {
      created: new Date().toISOString(),
      memtracker: programVersion(),
      run: stream.run,
      framework: 'scenario',
      checkout: null,
      argv: [],
      world,
      rank: spec.rank,
      gpus_per_node: spec.gpus_per_node,
      gpu: { id: gpu.name, ...spec.gpu },
      steps: 1,
      options: {},
      source: {},
      environment: recordedEnvironment(env),
      origin: 'scenario',
    };
    return new Bridge(interpreter, stream, session, torch, await torch.nn, header);
  } catch (error) {
    await interpreter?.stop();
    await stream.close();
    throw error;
  }
}

/** An open bridge. Not for concurrent use: one call after the other, as in a Python program. */
export class Bridge {
  /** The real `torch` module. Attributes and calls are awaited; keyword arguments: `torch.empty$(4, {device: 'cuda'})`. */
  readonly torch: PyObject;
  readonly nn: PyObject;
  readonly #interpreter: Interpreter;
  readonly #stream: EventStream;
  readonly #session: PyObject;
  readonly #header: TraceHeader;
  readonly #ledger = new Ledger();
  readonly #events: EventTuple[] = [];
  readonly #received: Promise<StreamSummary>;
  readonly #pending = new Set<PyObject>();
  #closed = false;

  /** Use {@link openBridge}. */
  constructor(
    interpreter: Interpreter,
    stream: EventStream,
    session: PyObject,
    torch: PyObject,
    nn: PyObject,
    header: TraceHeader,
  ) {
    this.#interpreter = interpreter;
    this.#stream = stream;
    this.#session = session;
    this.torch = torch;
    this.nn = nn;
    this.#header = header;
    this.#received = stream.receive({
      frame: async (_raw: Uint8Array, batch: Batch) => {
        for (const event of batch.events) this.#events.push(event);
      },
    });
    interpreter.process.once('exit', () => stream.senderGone());
  }

  /** Process id of the interpreter. */
  get pid(): number | undefined {
    return this.#interpreter.process.pid;
  }

  /**
   * Runs `body` with fake tensors (`allow_fallback_kernels=False`) and the recorder on. Objects that Python handed out inside are let go
   * at its end, in the order of Python's own reference counting, but for those passed to `keep` and the result.
   */
  async fake<T>(body: (scope: FakeScope) => Promise<T>): Promise<T> {
    await this.#session.enter();
    try {
      return await this.#interpreter.scope((keep) =>
        body({ torch: this.torch, nn: this.nn, keep }),
      );
    } finally {
      if (!this.#closed) await this.#session.leave();
    }
  }

  /** A labelled span. Labels: step, micro_batch, … @throws RangeError for an empty name. */
  async phase<T>(
    name: string,
    labels: Readonly<Record<string, string | number>>,
    body: () => Promise<T>,
  ): Promise<T> {
    checkLabel('the name of a phase', name);
    const phase = await this.#session.phase_begin(name, labels);
    try {
      return await body();
    } finally {
      await this.#session.phase_end(phase);
    }
  }

  /** Runs `body` and lets go of every Python object made inside, but for those passed to `keep` and the result. */
  scope<T>(body: (keep: <O>(object: O) => O) => Promise<T>): Promise<T> {
    return this.#interpreter.scope(body);
  }

  /** Lets go of objects: a tensor that nothing else refers to is freed before this resolves. */
  release(...objects: readonly PyObject[]): Promise<void> {
    return this.#interpreter.release(...objects);
  }

  /** Imports any Python module. */
  import(module: string): Promise<PyObject> {
    return this.#interpreter.import(module);
  }

  /** Names the modules and parameters of a model, so that they are attributed. */
  async registerModel(model: PyObject, prefix = ''): Promise<void> {
    await this.#session.register_model(model, prefix);
  }

  async registerOptimizer(optimizer: PyObject): Promise<void> {
    await this.#session.register_optimizer(optimizer);
  }

  /**
   * Declares memory outside the caching allocator (a context, a library, NCCL measured elsewhere).
   * @throws RangeError for an empty id or category, an id that is live, or bytes that are negative or fractional.
   */
  async externalAlloc(
    id: string,
    bytes: number,
    { category, metadata = {} }: { category: string; metadata?: ExternalDetail },
  ): Promise<void> {
    const entry = this.#ledger.checkAlloc(id, bytes, category);
    await this.#session.external_alloc(id, bytes, category, { evidence: 'assumed', ...metadata });
    this.#ledger.add(entry);
  }

  /** @throws RangeError for an id that is not live. */
  async externalFree(id: string): Promise<void> {
    this.#ledger.checkFree(id);
    await this.#session.external_free(id);
    this.#ledger.remove(id);
  }

  /** Holds external memory for the length of `body`. */
  async trackExternal<T>(
    id: string,
    bytes: number,
    detail: { category: string; metadata?: ExternalDetail },
    body: () => Promise<T>,
  ): Promise<T> {
    await this.externalAlloc(id, bytes, detail);
    try {
      return await body();
    } finally {
      await this.externalFree(id);
    }
  }

  /** A stream of the fake device; pass it to {@link onStream} and {@link recordStream}. */
  newStream(): Promise<PyObject> {
    return this.torch.cuda.Stream();
  }

  /** Allocations inside `body` go to the stream's own pool of blocks. */
  async onStream<T>(stream: PyObject, body: () => Promise<T>): Promise<T> {
    const scope = await this.torch.cuda.stream(stream);
    await scope.__enter__();
    try {
      return await body();
    } finally {
      await scope.__exit__(null, null, null);
    }
  }

  /** A private pool (torch.cuda.MemPool). */
  newPool(): Promise<PyObject> {
    return this.torch.cuda.MemPool();
  }

  async inPool<T>(pool: PyObject, body: () => Promise<T>): Promise<T> {
    const scope = await this.torch.cuda.use_mem_pool(pool);
    await scope.__enter__();
    try {
      return await body();
    } finally {
      await scope.__exit__(null, null, null);
    }
  }

  /** Tensor.record_stream: the block is not reused before the stream's work is done. */
  async recordStream(tensor: PyObject, stream: PyObject): Promise<void> {
    await tensor.record_stream(stream);
  }

  /** The host waits for the stream: pending frees of its work complete. */
  async completeStream(stream: PyObject): Promise<void> {
    await stream.synchronize();
  }

  async emptyAllocatorCache(): Promise<void> {
    await this.#session.empty_cache();
  }

  /** PyTorch's functional collective on the pretended job's default group; the input stays alive until the result is waited for. */
  async collective(kind: CollectiveKind, tensor: PyObject): Promise<PyObject> {
    await this.#session.init_process_group();
    const result = await this.#session.collective(kind, tensor);
    this.#pending.add(result);
    return result;
  }

  async wait(result: PyObject): Promise<PyObject> {
    this.#pending.delete(result);
    return this.#session.wait(result);
  }

  async waitAll(): Promise<void> {
    for (const result of [...this.#pending]) await this.wait(result);
  }

  /** What was recorded so far. Later events do not change a trace that was handed out. */
  async trace(): Promise<Trace> {
    const sent: number = await this.#session.flush();
    const deadline = Date.now() + FLUSH_TIMEOUT;
    while (this.#events.length < sent) {
      if (Date.now() > deadline) {
        throw new BridgeClosedError(`${sent} events were sent and ${this.#events.length} arrived`);
      }
      await new Promise((next) => setTimeout(next, 5));
    }
    return this.#build(this.#events.slice(0, sent));
  }

  /** Peaks of what was recorded so far, on any GPU and with any allocator settings. */
  async report(device: ScenarioDevice = {}): Promise<ScenarioReport> {
    return reportScenario(await this.trace(), device);
  }

  /** Ends the session and the interpreter. Harmless when called twice. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    try {
      await this.#session.close();
      await this.#received;
    } catch (error) {
      if (!(error instanceof BridgeClosedError)) throw error;
    } finally {
      await this.#interpreter.stop();
      await this.#stream.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  #build(events: readonly EventTuple[]): Trace {
    const builder = new TraceBuilder(this.#header);
    for (const event of events) builder.push(event);
    // A trace of a session that goes on has no close event of its own; it is whole up to here.
    builder.push([eventCode('close'), 'done', events.length + 1, {}]);
    return builder.finish(null);
  }
}
