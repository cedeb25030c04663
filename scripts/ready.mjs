// Makes a fresh clone ready: installs the Node packages when they are missing or another lock asks for others, and builds.
// Plain JavaScript on purpose: it runs before anything is installed. `npm run demo` and `npm test` start with it.

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const stamp = join(root, 'node_modules', '.memtracker-lock');
const [major, minor] = process.versions.node.split('.').map(Number);
if (major < 20 || (major === 20 && minor < 15)) {
  console.error(`memtracker needs Node 20.15 or later; this is ${process.versions.node}`);
  process.exit(3);
}
const lock = createHash('sha256')
  .update(readFileSync(join(root, 'package-lock.json')))
  .digest('hex');
const installed = existsSync(stamp) && readFileSync(stamp, 'utf8') === lock;
if (!installed) {
  // `prepare` builds.
  execFileSync('npm', ['ci', '--no-audit', '--no-fund'], { cwd: root, stdio: ['ignore', 2, 2] });
  writeFileSync(stamp, lock);
} else if (!isBuilt()) {
  execFileSync('npm', ['run', 'build'], { cwd: root, stdio: ['ignore', 2, 2] });
}

/** dist/ is there and no file of src/ is newer. */
function isBuilt() {
  const built = statSync(join(root, 'dist', 'cli', 'main.js'), { throwIfNoEntry: false });
  if (built === undefined) return false;
  return readdirSync(join(root, 'src'), { recursive: true, withFileTypes: true }).every(
    (entry) =>
      !entry.isFile() || statSync(join(entry.parentPath, entry.name)).mtimeMs <= built.mtimeMs,
  );
}
