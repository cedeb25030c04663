// Resolves python/requirements/*.in into *.lock with the hashes that the registry gives, through pip-compile.
//
//   python -m pip install pip-tools && npx tsx scripts/lock_python.ts [NAME…]
//
// sidecar and torch are the base. The lock of a framework holds only what it adds: torch may have come as another build
// (CPU), which must not be replaced.

import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';

const FOLDER = fileURLToPath(new URL('../python/requirements/', import.meta.url));
const BASE = ['sidecar', 'torch'];
const ADDED = ['dev', 'torchtitan', 'megatron'];

/** `torch==2.14.1 \` and its hashes, by distribution name. */
function pins(text: string): Map<string, string> {
  const found = new Map<string, string>();
  for (const block of text.split(/\n(?=[a-z0-9])/i)) {
    const name = /^([a-z0-9._-]+)==/i.exec(block)?.[1];
    if (name !== undefined) found.set(name, block.replace(/\n#.*/gs, '').trimEnd());
  }
  return found;
}

function readPins(name: string): Map<string, string> {
  return pins(readFileSync(`${FOLDER}${name}.lock`, 'utf8'));
}

async function compile(name: string): Promise<void> {
  const flags = ['--allow-unsafe', '--generate-hashes', '--strip-extras', '--no-annotate'];
  const quiet = ['--quiet', '--no-header', '--no-emit-index-url', '--no-emit-find-links'];
  await execa('pip-compile', [...flags, ...quiet, '-o', `${name}.lock`, `${name}.in`], {
    cwd: FOLDER,
    stdio: 'inherit',
  });
}

function rewrite(name: string): void {
  const own = readPins(name);
  const base = name === 'sidecar' ? [] : name === 'torch' ? ['sidecar'] : BASE;
  for (const lock of base) for (const present of readPins(lock).keys()) own.delete(present);
  // Resolved on Linux, where torch brings CUDA libraries and triton; other platforms have no such wheels.
  if (name === 'torch') {
    for (const [pin, block] of own) {
      if (pin !== 'torch') own.set(pin, block.replace(/ \\/, ' ; sys_platform == "linux" \\'));
    }
  }
  const head = `# Made by scripts/lock_python.ts from ${name}.in. Do not edit.`;
  writeFileSync(`${FOLDER}${name}.lock`, `${[head, ...own.values()].join('\n')}\n`);
}

const arguments_ = process.argv.slice(2);
const onlyRewrite = arguments_.includes('--rewrite');
const asked = arguments_.filter((argument) => !argument.startsWith('--'));
for (const name of asked.length > 0 ? asked : [...BASE, ...ADDED]) {
  if (!onlyRewrite) await compile(name);
  rewrite(name);
}
