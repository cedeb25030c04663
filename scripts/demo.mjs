// `npm run demo`: traces the bundled example and reports it. The trace ends with 2 where the example rests on stated assumptions (the
// report lists them); that is no reason not to report it.

import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..');
const UNCOVERED = 2;

/** Runs one script of the package and ends with its status when that is not one of `accepted`. */
function run(script, words, accepted) {
  const { status } = spawnSync(process.execPath, [join(root, script), ...words], {
    cwd: root,
    stdio: 'inherit',
  });
  if (!accepted.includes(status)) process.exit(status ?? 1);
}

const main = join('dist', 'cli', 'main.js');
const example = join('examples', 'llama_fsdp2.py');
run(join('scripts', 'ready.mjs'), [], [0]);
run(main, ['trace', '--world', '8', '--out', 'demo.mtrace', '--', example], [0, UNCOVERED]);
run(main, ['report', 'demo.mtrace'], [0]);
