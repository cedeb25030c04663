// Runs work units as one Slurm job array: `sbatch --array`, then `squeue` until it is empty. The folder of units and the cache must be
// on a file system that the nodes share. Each element runs `memtracker fit-unit FOLDER INDEX`.

import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { execa } from 'execa';
import { UserError } from '../../base/errors.ts';
import {
  type Executor,
  type ExecutorHooks,
  PROGRESS,
  type TraceRequest,
  type TraceResult,
} from '../executor.ts';
import { readUnitResult, unitFile, unitResultFile } from '../unit_folder.ts';

export interface SlurmOptions {
  /** Shared folder for units, results and the job's output. */
  readonly folder: string;
  /** The command that starts memtracker on a node. */
  readonly command: readonly string[];
  /** More arguments for sbatch: partition, account, time limit. */
  readonly sbatch: readonly string[];
  /** Elements that run at once; 0 leaves it to Slurm. */
  readonly limit: number;
  readonly pollMilliseconds: number;
}

/** A controller under load does not answer every question; one that answers none of these is gone. */
const POLLS_UNANSWERED = 60;

export class SlurmExecutor implements Executor {
  readonly name = 'slurm';
  readonly #options: SlurmOptions;

  constructor(options: SlurmOptions) {
    this.#options = options;
  }

  async run(requests: readonly TraceRequest[], hooks: ExecutorHooks): Promise<TraceResult[]> {
    if (requests.length === 0) return [];
    const { folder, command, sbatch, limit, pollMilliseconds } = this.#options;
    await mkdir(folder, { recursive: true });
    await Promise.all(
      requests.map((request, index) =>
        writeFile(
          unitFile(folder, index),
          JSON.stringify({ key: request.key, unit: request.unit }),
        ),
      ),
    );
    const script = join(folder, 'job.sh');
    const words = [...command, 'fit-unit', folder].map(shellQuote).join(' ');
    await writeFile(script, `#!/bin/sh\nexec ${words} "$SLURM_ARRAY_TASK_ID"\n`, { mode: 0o755 });
    const array = `0-${requests.length - 1}${limit > 0 ? `%${limit}` : ''}`;
    const output = join(folder, 'slurm-%a.out');
    const submitted = await execa(
      'sbatch',
      [
        '--parsable',
        `--array=${array}`,
        '--job-name=memtracker',
        `--output=${output}`,
        ...sbatch,
        script,
      ],
      { reject: false },
    );
    if (submitted.exitCode !== 0) {
      throw new UserError(
        'SLURM',
        `sbatch did not take the job: ${submitted.stderr || submitted.originalMessage}; try --executor local, or pass ` +
          'what your site needs with --sbatch',
      );
    }
    const job = submitted.stdout.trim().split(';')[0];
    const cancel = () => void execa('scancel', [job], { reject: false });
    hooks.signal.addEventListener('abort', cancel, { once: true });
    try {
      await this.#wait(job, requests, hooks, pollMilliseconds);
    } finally {
      hooks.signal.removeEventListener('abort', cancel);
    }
    return Promise.all(requests.map((request, index) => this.#result(request, index, hooks)));
  }

  async #wait(job: string, requests: readonly TraceRequest[], hooks: ExecutorHooks, poll: number) {
    let unanswered = 0;
    for (;;) {
      const queue = await execa(
        'squeue',
        ['--noheader', '--array', `--jobs=${job}`, '--format=%K %T'],
        {
          reject: false,
        },
      );
      // A job that has left the queue is unknown to squeue after a while: that is an end, not an error.
      const answered = queue.exitCode === 0 || /invalid job id/i.test(queue.stderr ?? '');
      unanswered = answered ? 0 : unanswered + 1;
      const lines = queue.exitCode === 0 ? queue.stdout.split('\n').filter(Boolean) : [];
      if (lines.length === 0 && (answered || unanswered === POLLS_UNANSWERED)) return;
      for (const line of lines) {
        const [index, state] = line.split(' ');
        const request = requests[Number(index)];
        if (request !== undefined) {
          hooks.onProgress(request, state === 'RUNNING' ? PROGRESS.running : PROGRESS.waiting);
        }
      }
      if (hooks.signal.aborted) return;
      await delay(poll);
    }
  }

  async #result(request: TraceRequest, index: number, hooks: ExecutorHooks): Promise<TraceResult> {
    const { folder } = this.#options;
    const result = await readUnitResult(unitResultFile(folder, index), request.key);
    if (result !== undefined) {
      hooks.onProgress(request, result.failure === null ? PROGRESS.done : PROGRESS.failed);
      return result;
    }
    hooks.onProgress(request, PROGRESS.failed);
    const log = await readFile(join(folder, `slurm-${index}.out`), 'utf8').catch(() => '');
    const tail = log.trim().split('\n').slice(-5).join('\n');
    return {
      key: request.key,
      path: null,
      failure: `the Slurm task left no result${tail === '' ? '' : `; its last lines:\n${tail}`}`,
    };
  }
}

function shellQuote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
