// ruff and mypy over the Python of the sidecar and the adapters. Part of `npm run lint`.

import { execa } from 'execa';
import { developmentPython } from './development_python.ts';

const python = await developmentPython();
const checks = [
  ['ruff', 'check', '.'],
  ['ruff', 'format', '--check', '.'],
  ['mypy', 'python/memtracker_sidecar'],
];
for (const check of checks) {
  const { exitCode } = await execa(python, ['-m', ...check], { reject: false, stdio: 'inherit' });
  if (exitCode !== 0) process.exitCode = 1;
}
