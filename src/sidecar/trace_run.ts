// One rank of one job, from its description to a trace file: opens the stream, starts the worker, writes what arrives, and says
// how it ended. Ranks are independent; a caller that wants several runs several of these.

import { writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import type { Bytes } from '../base/bytes.ts';
import { ExitStatus, UserError } from '../base/errors.ts';
import type { Batch } from '../protocol/codec.ts';
import { toObject } from '../protocol/codec.ts';
import { EVENTS, type EventOf, type EventTuple } from '../protocol/events.ts';
import { type WorkerSpec, workerSpecSchema } from '../protocol/worker_spec.ts';
import type { TraceFooter, TraceHeader } from '../trace/file_format.ts';
import { TraceWriter } from '../trace/writer.ts';
import { type Adapter, checkAdapterOptions, checkCheckout, findAdapter } from './adapter.ts';
import {
  installCommand,
  type PythonEnvironment,
  provideFramework,
  type SetupOptions,
} from './environment.ts';
import { LiveProgress } from './live_progress.ts';
import { packageFolder } from './package_folder.ts';
import { folderSha256, recordedEnvironment, sourceIdentity } from './source_identity.ts';
import { EventStream, type StreamSummary } from './stream.ts';
import { Worker, type WorkerExit, type WorkerTimeouts } from './worker.ts';

/** The GPU that the training code is told it has: a row of `GPU_MODELS`. */
export interface PretendedGpu {
  /** The name on our command line, kept in the trace for its replays. */
  readonly name: string;
  /** What `torch.cuda.get_device_name()` says. */
  readonly deviceName: string;
  readonly capability: readonly [number, number];
  readonly multiprocessors: number;
  readonly usableBytes: Bytes;
}

export interface TraceJob {
  /** Name of an adapter. */
  readonly framework: string;
  /** Folder of the checkout; undefined for frameworks without one. */
  readonly checkout?: string | undefined;
  /** The framework's own arguments. */
  readonly argv: readonly string[];
  readonly cwd: string;
  readonly world: number;
  readonly rank: number;
  readonly gpusPerNode: number;
  readonly gpu: PretendedGpu;
  readonly steps: number;
  readonly stackDepth: number;
  readonly options: Readonly<Record<string, string | number | boolean>>;
  /** Where the trace goes. */
  readonly out: string;
  /** Declared target identity, written to the header as it is. */
  readonly target?: Readonly<Record<string, unknown>>;
}

export interface TraceContext {
  readonly environment: PythonEnvironment;
  readonly env: NodeJS.ProcessEnv;
  readonly memtrackerVersion: string;
  readonly signal?: AbortSignal;
  readonly timeouts?: Partial<WorkerTimeouts>;
  /** What is installed first, the first time that a framework is traced in an environment of ours. */
  readonly onSetup?: SetupOptions['onProgress'];
  /** Called after every batch and when the state changes. */
  readonly onProgress?: (progress: LiveProgress) => void;
  /** Every line that the training code prints. */
  readonly onLine?: (line: string, stream: 'stdout' | 'stderr') => void;
  /** For tests: the process that is started. */
  readonly onStarted?: (pid: number) => void;
}

export interface TraceOutcome {
  readonly path: string;
  readonly footer: TraceFooter;
  readonly summary: StreamSummary;
  readonly exit: WorkerExit;
  /** Events of kind `uncovered`, in order. */
  readonly uncovered: readonly EventOf<'uncovered'>[];
  /** The error that ended the run, if one did. */
  readonly fatal: EventOf<'error'> | undefined;
  /** Highest sum of live CUDA storages, bytes. */
  readonly livePeak: Bytes;
  readonly fileBytes: number;
  readonly exitStatus: ExitStatus;
  /** Why the exit status is not `done`: sentences for a person. */
  readonly problems: readonly string[];
}

/** Exit status of a worker whose problem lies before the training code (python/memtracker_sidecar/__main__.py). */
const WORKER_PROBLEM = 3;

const ERROR = EVENTS.error.code;
const UNCOVERED = EVENTS.uncovered.code;

/**
 * Checks the job, runs it and writes the trace.
 * @throws UserError when the job is wrong before anything ran, or the trace cannot be written.
 */
export async function traceRun(job: TraceJob, context: TraceContext): Promise<TraceOutcome> {
  const { adapter, checkout } = checkJob(job);
  await provideFramework(context.environment, adapter, {
    env: context.env,
    ...(context.signal && { signal: context.signal }),
    ...(context.onSetup && { onProgress: context.onSetup }),
  });
  const out = resolve(job.cwd, job.out);
  const source = {
    ...(checkout !== null && { checkout: await sourceIdentity(checkout) }),
    adapter_sha256: await folderSha256(resolve(adapter.folder)),
    sidecar_sha256: await folderSha256(packageFolder(join('python', 'memtracker_sidecar'))),
  };

  const stream = await EventStream.open({ env: context.env });
  const started = Date.now();
  try {
    const spec = workerSpec(job, adapter, checkout, stream);
    const writer = await TraceWriter.create(out, {
      created: new Date(started).toISOString(),
      memtracker: context.memtrackerVersion,
      run: stream.run,
      framework: job.framework,
      checkout,
      argv: [...job.argv],
      world: job.world,
      rank: job.rank,
      gpus_per_node: job.gpusPerNode,
      gpu: { id: job.gpu.name, ...spec.gpu },
      steps: job.steps,
      options: { ...job.options },
      source,
      environment: recordedEnvironment(context.env),
      ...(job.target !== undefined && { target: { ...job.target } }),
      origin: 'estimate',
    } satisfies TraceHeader);
    try {
      return await new TraceRun(spec, adapter, context, stream, writer, started).run();
    } finally {
      await writer.abandon();
    }
  } finally {
    await stream.close();
  }
}

/**
 * Everything about a job that can be checked without Python. {@link traceRun} does it too; a caller that would set up an
 * environment first asks before.
 * @throws UserError
 */
export function checkJob(job: TraceJob): { adapter: Adapter; checkout: string | null } {
  const adapter = findAdapter(job.framework);
  const checkout = checkCheckout(adapter, job.checkout, job.cwd);
  checkAdapterOptions(adapter, job.options);
  if (job.rank >= job.world) {
    throw new UserError(
      'RANK',
      `--rank ${job.rank} is not in a world of ${job.world}; ranks are 0 to ${job.world - 1}`,
    );
  }
  if (!adapter.manifest.checkout && job.argv.length === 0) {
    throw new UserError(
      'ARGUMENTS',
      `nothing to run: write -- and then ${adapter.manifest.arguments}`,
    );
  }
  return { adapter, checkout };
}

function workerSpec(
  job: TraceJob,
  adapter: Adapter,
  checkout: string | null,
  stream: EventStream,
): WorkerSpec {
  return workerSpecSchema.parse({
    endpoint: stream.endpoint,
    curve: stream.curve,
    run: stream.run,
    adapter: resolve(adapter.folder),
    checkout,
    argv: [...job.argv],
    cwd: job.cwd,
    world: job.world,
    rank: job.rank,
    gpus_per_node: job.gpusPerNode,
    gpu: {
      name: job.gpu.deviceName,
      capability: [...job.gpu.capability],
      total_memory: job.gpu.usableBytes,
      multi_processor_count: job.gpu.multiprocessors,
    },
    steps: job.steps,
    stack_depth: job.stackDepth,
    options: { ...job.options },
  } satisfies WorkerSpec);
}

class TraceRun {
  readonly #spec: WorkerSpec;
  readonly #adapter: Adapter;
  readonly #context: TraceContext;
  readonly #stream: EventStream;
  readonly #writer: TraceWriter;
  readonly #started: number;
  readonly #progress: LiveProgress;
  readonly #uncovered: EventOf<'uncovered'>[] = [];
  #fatal: EventOf<'error'> | undefined;

  constructor(
    spec: WorkerSpec,
    adapter: Adapter,
    context: TraceContext,
    stream: EventStream,
    writer: TraceWriter,
    started: number,
  ) {
    this.#spec = spec;
    this.#progress = new LiveProgress(spec.steps);
    this.#adapter = adapter;
    this.#context = context;
    this.#stream = stream;
    this.#writer = writer;
    this.#started = started;
  }

  async run(): Promise<TraceOutcome> {
    const { environment, env, signal, onProgress, onLine, onStarted, timeouts } = this.#context;
    const specPath = join(this.#stream.folder.path, 'worker.json');
    await writeFile(specPath, JSON.stringify(this.#spec), { mode: 0o600 });
    const worker = new Worker({
      command: [environment.python, '-m', 'memtracker_sidecar', specPath],
      cwd: this.#spec.cwd,
      env: workerEnvironment(env),
      ...(timeouts && { timeouts }),
      ...(onLine && { onLine }),
    });
    const onAbort = () => void worker.stop();
    signal?.throwIfAborted();
    signal?.addEventListener('abort', onAbort, { once: true });
    try {
      const exited = worker.start().then((exit) => {
        this.#stream.senderGone();
        return exit;
      });
      if (worker.pid !== undefined) onStarted?.(worker.pid);
      onProgress?.(this.#progress);
      const summary = await this.#stream.receive({
        frame: async (raw, batch) => {
          worker.markRunning();
          this.#look(batch);
          await this.#writer.batch(raw);
          onProgress?.(this.#progress);
        },
      });
      if (summary.closed) worker.expectExit();
      return await this.#finish(summary, await exited);
    } finally {
      signal?.removeEventListener('abort', onAbort);
      await worker.stop();
    }
  }

  #look(batch: Batch): void {
    this.#progress.see(batch.events);
    for (const event of batch.events) {
      if (event[0] === UNCOVERED) this.#uncovered.push(toObject(event) as EventOf<'uncovered'>);
      else if (event[0] === ERROR) this.#sawError(event);
    }
  }

  #sawError(event: EventTuple): void {
    const error = toObject(event) as EventOf<'error'>;
    if (error.fatal) this.#fatal ??= error;
  }

  async #finish(summary: StreamSummary, exit: WorkerExit): Promise<TraceOutcome> {
    const interrupted = this.#context.signal?.aborted === true;
    const status = footerStatus(summary, exit, interrupted);
    const footer: TraceFooter = {
      status,
      exit_code: exit.exitCode,
      signal: exit.signal,
      batches: summary.batches,
      events: summary.events,
      faults: [...summary.faults],
      stderr_tail: exit.stderrTail,
      wall_seconds: (Date.now() - this.#started) / 1000,
      worker_peak_rss: exit.peakRss,
    };
    await this.#writer.close(footer);
    const { exitStatus, problems } = this.#judge(status, summary, exit);
    return {
      path: this.#writer.path,
      footer,
      summary,
      exit,
      uncovered: this.#uncovered,
      fatal: this.#fatal,
      livePeak: this.#progress.livePeak as Bytes,
      fileBytes: this.#writer.bytesWritten,
      exitStatus,
      problems,
    };
  }

  #judge(
    status: TraceFooter['status'],
    summary: StreamSummary,
    exit: WorkerExit,
  ): { exitStatus: ExitStatus; problems: string[] } {
    const problems = this.#causes(status, exit);
    // The missing close event is said once, by the cause.
    if (summary.closed) problems.push(...summary.faults);
    if (exit.cause === 'stop_timeout') {
      problems.push(
        'the worker did not exit after it had closed its stream and was ended; the trace is whole',
      );
    }
    if (status === 'interrupted') return { exitStatus: ExitStatus.interrupted, problems };
    if (this.#fatal !== undefined) {
      const users = exit.exitCode === WORKER_PROBLEM || this.#missingModule() !== undefined;
      return { exitStatus: users ? ExitStatus.usage : ExitStatus.trainingFailed, problems };
    }
    if (status === 'failed') return { exitStatus: ExitStatus.trainingFailed, problems };
    if (status !== 'done') return { exitStatus: ExitStatus.usage, problems };
    if (summary.faults.length > 0 || this.#uncovered.length > 0) {
      return { exitStatus: ExitStatus.uncovered, problems };
    }
    return { exitStatus: ExitStatus.done, problems };
  }

  #causes(status: TraceFooter['status'], exit: WorkerExit): string[] {
    if (exit.spawnError !== null) {
      return [
        `${this.#context.environment.python} could not be started: ${exit.spawnError}; run memtracker doctor`,
      ];
    }
    if (this.#fatal !== undefined) {
      const module = this.#missingModule();
      const hint =
        module === undefined
          ? ''
          : ` (install it: ${installCommand(this.#context.environment, this.#adapter)})`;
      return [`${this.#fatal.cause}${hint}`];
    }
    switch (status) {
      case 'done':
        return [];
      case 'interrupted':
        return ['interrupted; what arrived is kept'];
      case 'timed_out':
        return [
          'the worker sent nothing within the start time-out and was ended; run memtracker doctor, or import torch once by hand to warm the disk',
        ];
      case 'killed':
        return [killedSentence(exit)];
      case 'failed':
        return [diedSentence(exit)];
    }
  }

  /** The module of a ModuleNotFoundError that ended the run. */
  #missingModule(): string | undefined {
    if (this.#fatal?.exception !== 'ModuleNotFoundError') return undefined;
    return /No module named '([^']+)'/.exec(this.#fatal.cause)?.[1];
  }
}

/** A worker that has closed its stream has said how the run ended; how its process ended then does not change that. */
function footerStatus(
  summary: StreamSummary,
  exit: WorkerExit,
  interrupted: boolean,
): TraceFooter['status'] {
  if (interrupted) return 'interrupted';
  if (summary.closed) return summary.status === 'done' ? 'done' : 'failed';
  if (exit.cause === 'start_timeout') return 'timed_out';
  return exit.signal === null ? 'failed' : 'killed';
}

function killedSentence(exit: WorkerExit): string {
  const reason =
    exit.signal === 'SIGKILL'
      ? 'often the kernel, short of memory: close other programs or trace fewer ranks at once'
      : 'a crash in native code: the last lines above may say where';
  return `the worker was killed by ${exit.signal} (${reason}); what arrived up to then is kept`;
}

function diedSentence(exit: WorkerExit): string {
  const lines = exit.stderrTail.split('\n').slice(-15).join('\n');
  const said = lines === '' ? 'It printed nothing.' : `Its last lines were:\n${lines}`;
  return `the worker ended with status ${exit.exitCode} and did not close its stream; what arrived up to then is kept. ${said}`;
}

/** The environment of the training code: the caller's, our package on the path, output unbuffered, crashes with a traceback. */
function workerEnvironment(env: NodeJS.ProcessEnv): NodeJS.ProcessEnv {
  const python = packageFolder('python');
  const separator = process.platform === 'win32' ? ';' : ':';
  return {
    ...env,
    PYTHONPATH: env.PYTHONPATH ? `${python}${separator}${env.PYTHONPATH}` : python,
    PYTHONUNBUFFERED: '1',
    PYTHONFAULTHANDLER: '1',
    PYTHONDONTWRITEBYTECODE: env.PYTHONDONTWRITEBYTECODE ?? '1',
    MEMTRACKER_PARENT: String(process.pid),
  };
}
