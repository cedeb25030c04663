// Starts the user's own launch command with a capture around it. Nothing is installed and nothing of the command is changed: the
// processes that it starts find the capture through two environment variables (see python/memtracker_sidecar/capture).

import { mkdir, readdir, stat } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { execa } from 'execa';
import { z } from 'zod';
import { UserError } from '../../base/errors.ts';
import { findAdapter } from '../../sidecar/adapter.ts';
import { packageFolder } from '../../sidecar/package_folder.ts';

/** The Python twin is CaptureSettings in capture/settings.py. */
export const captureSettingsSchema = z.strictObject({
  out: z.string(),
  framework: z.string(),
  adapter: z.string(),
  memtracker: z.string(),
  /** Entries that the history may hold; 0: all. */
  max_entries: z.int().nonnegative(),
  stacks: z.enum(['python', 'all']),
  synchronize: z.boolean(),
  empty_cache: z.boolean(),
  reset_peak: z.boolean(),
  purpose: z.enum(['calibration', 'validation']),
});
export type CaptureSettings = z.infer<typeof captureSettingsSchema>;

export interface CaptureJob extends Omit<CaptureSettings, 'adapter'> {
  /** The user's command and its arguments. */
  readonly command: readonly string[];
  readonly cwd: string;
}

export interface CaptureOutcome {
  /** Exit code of the command; null when a signal ended it. */
  readonly exitCode: number | null;
  readonly signal: string | null;
  /** Files written by this run, one a rank, sorted. */
  readonly files: readonly string[];
}

/** The variables that a captured process needs, on top of `environment`. @throws UserError for an unknown framework. */
export function captureEnvironment(
  job: Omit<CaptureJob, 'command' | 'cwd'>,
  environment: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const adapter = findAdapter(job.framework);
  const python = packageFolder('python');
  const site = join(python, 'memtracker_sidecar', 'capture', 'site');
  const settings: CaptureSettings = captureSettingsSchema.parse({
    out: job.out,
    framework: job.framework,
    adapter: adapter.folder,
    memtracker: job.memtracker,
    max_entries: job.max_entries,
    stacks: job.stacks,
    synchronize: job.synchronize,
    empty_cache: job.empty_cache,
    reset_peak: job.reset_peak,
    purpose: job.purpose,
  });
  const inherited = environment.PYTHONPATH;
  return {
    PYTHONPATH:
      inherited === undefined || inherited === '' ? site : `${site}${delimiter}${inherited}`,
    MEMTRACKER_CAPTURE_PACKAGE: python,
    MEMTRACKER_CAPTURE: JSON.stringify(settings),
  };
}

/**
 * Runs the command to its end, with this terminal's streams.
 * @throws UserError `CAPTURE_COMMAND` when there is none or it cannot be started.
 */
export async function captureRun(
  job: CaptureJob,
  environment: Readonly<Record<string, string | undefined>>,
  signal?: AbortSignal,
): Promise<CaptureOutcome> {
  const [program, ...rest] = job.command;
  if (program === undefined) {
    throw new UserError(
      'CAPTURE_COMMAND',
      'write your own launch command after --: memtracker capture --out DIR -- torchrun --nproc-per-node 8 train.py',
    );
  }
  await mkdir(job.out, { recursive: true });
  const began = Date.now();
  const done = await execa(program, rest, {
    cwd: job.cwd,
    env: captureEnvironment(job, environment),
    stdio: 'inherit',
    reject: false,
    // The job's own shutdown writes the files: give it time.
    forceKillAfterDelay: 60_000,
    ...(signal === undefined ? {} : { cancelSignal: signal, gracefulCancel: false }),
  });
  if (done.failed && done.exitCode === undefined && done.signal === undefined) {
    throw new UserError(
      'CAPTURE_COMMAND',
      `cannot start ${program}: ${done.cause instanceof Error ? done.cause.message : done.shortMessage}`,
    );
  }
  return {
    exitCode: done.exitCode ?? null,
    signal: done.signal ?? null,
    files: await writtenSince(job.out, began),
  };
}

async function writtenSince(folder: string, time: number): Promise<string[]> {
  const files: string[] = [];
  for (const name of (await readdir(folder)).sort()) {
    if (!name.endsWith('.mtcapture')) continue;
    const path = join(folder, name);
    // File systems keep times to the second or worse.
    if ((await stat(path)).mtimeMs >= time - 2000) files.push(path);
  }
  return files;
}
