// Starts the real command line from the sources, as `memtracker` would run from dist/.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { afterEach } from 'vitest';

export const REPOSITORY = fileURLToPath(new URL('../../', import.meta.url));

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
  const main = join(REPOSITORY, 'src', 'cli', 'main.ts');
  return execa(process.execPath, ['--import', TSX, main, ...arguments_], {
    cwd: options.cwd ?? REPOSITORY,
    env: { NO_COLOR: '1', FORCE_COLOR: undefined, ...options.env },
    reject: false,
    stdin: 'ignore',
  });
}

const TSX = import.meta.resolve('tsx');

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
