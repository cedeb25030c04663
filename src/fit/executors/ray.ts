// Runs work units on a running Ray cluster, one Ray job each, through Ray's own command line (`ray job submit`). The folder of units and
// the cache must be on a file system that the nodes share.

import { mkdir, writeFile } from 'node:fs/promises';
import { setTimeout as delay } from 'node:timers/promises';
import { execa } from 'execa';
import pLimit from 'p-limit';
import { UserError } from '../../base/errors.ts';
import {
  type Executor,
  type ExecutorHooks,
  PROGRESS,
  type TraceRequest,
  type TraceResult,
} from '../executor.ts';
import { readUnitResult, unitFile, unitResultFile } from '../unit_folder.ts';

export interface RayOptions {
  readonly folder: string;
  /** `http://127.0.0.1:8265`; undefined leaves it to RAY_ADDRESS. */
  readonly address: string | undefined;
  /** The `ray` executable. */
  readonly ray: string;
  readonly command: readonly string[];
  /** Environment of the job on a node: Ray does not pass the submitter's on. */
  readonly environment: Readonly<Record<string, string>>;
  /** CPUs that one unit asks for. */
  readonly cpus: number;
  /** Bytes of memory that one unit asks for. */
  readonly memory: number;
  /** Jobs that are submitted at once; the cluster's own queue does the rest. */
  readonly limit: number;
  readonly pollMilliseconds: number;
}

const ENDED = /^(SUCCEEDED|FAILED|STOPPED)$/;

/** A cluster under load does not answer every question; one that answers none of these is gone. */
const POLLS_UNANSWERED = 60;

export class RayExecutor implements Executor {
  readonly name = 'ray';
  readonly #options: RayOptions;

  constructor(options: RayOptions) {
    this.#options = options;
  }

  async run(requests: readonly TraceRequest[], hooks: ExecutorHooks): Promise<TraceResult[]> {
    await mkdir(this.#options.folder, { recursive: true });
    const limit = pLimit(this.#options.limit);
    return Promise.all(
      requests.map((request, index) => limit(() => this.#one(request, index, hooks))),
    );
  }

  async #one(request: TraceRequest, index: number, hooks: ExecutorHooks): Promise<TraceResult> {
    const { folder, command, cpus, memory, pollMilliseconds } = this.#options;
    await writeFile(
      unitFile(folder, index),
      JSON.stringify({ key: request.key, unit: request.unit }),
    );
    if (hooks.signal.aborted) return { key: request.key, path: null, failure: 'interrupted' };
    // `ray job submit` takes the job's id; submitting it twice is refused, so that a retry cannot run a unit twice.
    const job = `memtracker-${request.key.slice(0, 16)}-${process.pid}-${index}`;
    const submitted = await this.#ray(
      'submit',
      '--no-wait',
      `--submission-id=${job}`,
      `--runtime-env-json=${JSON.stringify({ env_vars: this.#options.environment })}`,
      `--entrypoint-num-cpus=${cpus}`,
      `--entrypoint-memory=${memory}`,
      '--',
      ...command,
      'fit-unit',
      folder,
      String(index),
    );
    if (submitted.exitCode !== 0) {
      throw new UserError(
        'RAY',
        `the Ray cluster did not take the job: ${submitted.stderr.trim() || submitted.originalMessage}; start one with ` +
          '`ray start --head`, or point --ray-address at yours',
      );
    }
    let unanswered = 0;
    for (;;) {
      const state = await this.#state(job);
      unanswered = state === '' ? unanswered + 1 : 0;
      if (ENDED.test(state) || unanswered === POLLS_UNANSWERED) break;
      hooks.onProgress(request, state === 'RUNNING' ? PROGRESS.running : PROGRESS.waiting);
      if (hooks.signal.aborted) {
        await this.#ray('stop', '--no-wait', job);
        break;
      }
      await delay(pollMilliseconds);
    }
    const result = await readUnitResult(unitResultFile(folder, index), request.key);
    if (result !== undefined) {
      hooks.onProgress(request, result.failure === null ? PROGRESS.done : PROGRESS.failed);
      return result;
    }
    hooks.onProgress(request, PROGRESS.failed);
    const logs = await this.#ray('logs', job);
    const tail = logs.stdout.trim().split('\n').slice(-5).join('\n');
    return {
      key: request.key,
      path: null,
      failure: `the Ray job left no result; its last lines:\n${tail}`,
    };
  }

  /**
   * Empty when the cluster does not answer. The state stands behind the job's name ("Job 'x' failed"): an error about the connection
   * ("Failed to connect") says nothing of the job.
   */
  async #state(job: string): Promise<string> {
    const { stdout, stderr } = await this.#ray('status', job);
    const said = new RegExp(`'${job}'.*\\b(PENDING|RUNNING|SUCCEEDED|FAILED|STOPPED)\\b`, 'i');
    return said.exec(`${stdout}\n${stderr}`)?.[1]?.toUpperCase() ?? '';
  }

  async #ray(...words: string[]) {
    const [action, ...rest] = words;
    const { address } = this.#options;
    const where = address === undefined ? [] : [`--address=${address}`];
    return execa(this.#options.ray, ['job', action, ...where, ...rest], {
      reject: false,
      env: { RAY_COLOR_PREFIX: '0', NO_COLOR: '1' },
    });
  }
}
