// Starts the real command line, built, as `memtracker` does.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { afterEach } from 'vitest';
import { builtProgram, REPOSITORY } from './built_program.ts';

const PROGRAM = await builtProgram();

export interface Invoked {
  readonly exitCode: number | undefined;
  readonly signal: string | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

export interface InvokeOptions {
  readonly cwd?: string;
  readonly env?: Readonly<Record<string, string | undefined>>;
}

/** The process, for tests that look at it while it runs. */
export function startMemtracker(arguments_: readonly string[], options: InvokeOptions = {}) {
  return execa(process.execPath, [PROGRAM, ...arguments_], {
    cwd: options.cwd ?? REPOSITORY,
    env: { NO_COLOR: '1', FORCE_COLOR: undefined, ...options.env },
    reject: false,
    stdin: 'ignore',
  });
}

/** Resolves when the process has printed the line on stderr. @throws Error when it ends before. */
export async function untilLine(
  started: ReturnType<typeof startMemtracker>,
  line: string,
): Promise<void> {
  let seen = '';
  await new Promise<void>((done, fail) => {
    started.stderr.on('data', (chunk: Buffer) => {
      seen += chunk.toString();
      if (seen.split('\n').includes(line)) done();
    });
    started.once('exit', () => fail(new Error(`it ended without saying "${line}":\n${seen}`)));
  });
}

export async function memtracker(
  arguments_: readonly string[],
  options: InvokeOptions = {},
): Promise<Invoked> {
  const { exitCode, signal, stdout, stderr } = await startMemtracker(arguments_, options);
  return { exitCode, signal, stdout, stderr };
}

const folders: string[] = [];

/** A folder that is removed after the test. */
export function temporaryFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-test-'));
  folders.push(folder);
  return folder;
}

afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true, force: true });
});
