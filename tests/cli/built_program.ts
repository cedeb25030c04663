// The program as it is shipped: dist/, built from src/ when it is older. Test files may ask for it at the same time.

import { mkdirSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import lockfile from 'proper-lockfile';

export const REPOSITORY = fileURLToPath(new URL('../../', import.meta.url));
const MAIN = join(REPOSITORY, 'dist', 'cli', 'main.js');

function isFresh(): boolean {
  const built = statSync(MAIN, { throwIfNoEntry: false })?.mtimeMs ?? 0;
  const sources = readdirSync(join(REPOSITORY, 'src'), { recursive: true, withFileTypes: true });
  return sources.every(
    (entry) => !entry.isFile() || statSync(join(entry.parentPath, entry.name)).mtimeMs < built,
  );
}

/** Path of the program's JavaScript. @throws Error with the compiler's output when it does not build. */
export async function builtProgram(): Promise<string> {
  if (isFresh()) return MAIN;
  const dist = join(REPOSITORY, 'dist');
  mkdirSync(dist, { recursive: true });
  const release = await lockfile.lock(dist, { retries: { retries: 120, factor: 1 } });
  try {
    if (!isFresh()) {
      await execa('npm', ['run', 'build'], { cwd: REPOSITORY, all: true });
    }
  } finally {
    await release();
  }
  return MAIN;
}
