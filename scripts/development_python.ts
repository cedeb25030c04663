// The Python that tests and checks run with: the sidecar's environment, with the tools of dev.lock, what TorchTitan imports, and
// a release of TorchTitan beside it, so that a real model is traced without a checkout.

import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { findAdapter } from '../src/sidecar/adapter.ts';
import { cacheFolder, ensureEnvironment, installFramework } from '../src/sidecar/environment.ts';
import { packageFolder } from '../src/sidecar/package_folder.ts';
import { installedPackages } from '../src/sidecar/python.ts';

const REQUIREMENTS = packageFolder(join('python', 'requirements'));
const TOOLS = ['pytest', 'ruff', 'mypy'];
const TORCHTITAN_RELEASE = 'torchtitan-0.3.0';

function say(text: string): void {
  process.stderr.write(`${text}\n`);
}

async function pipInstall(python: string, arguments_: readonly string[]): Promise<void> {
  const command = ['-m', 'pip', 'install', '-qq', '--no-deps', '--require-hashes'];
  await execa(python, [...command, ...arguments_], { stdout: process.stderr, stderr: 'inherit' });
}

/** Path of the interpreter. @throws UserError when the environment cannot be made. */
export async function developmentPython(): Promise<string> {
  const onProgress = (text: string, kind: string) => kind === 'stage' && say(text);
  const environment = await ensureEnvironment({ env: process.env, onProgress });
  const installed = await installedPackages(environment.python, TOOLS);
  const missing = TOOLS.filter((name) => installed?.versions[name] == null);
  if (missing.length > 0) {
    say(`installing ${missing.join(', ')}`);
    await pipInstall(environment.python, ['-r', join(REQUIREMENTS, 'dev.lock')]);
  }
  if (environment.folder !== null) {
    await installFramework(environment, findAdapter('torchtitan'), {
      env: process.env,
      onProgress,
    });
  }
  return environment.python;
}

/** The folder of a pinned release of TorchTitan from the package registry, which looks like a checkout. */
export async function torchTitanRelease(python: string): Promise<string> {
  const folder = join(cacheFolder(process.env), 'test', TORCHTITAN_RELEASE);
  if (!existsSync(join(folder, 'torchtitan', 'train.py'))) {
    say(`fetching ${TORCHTITAN_RELEASE}`);
    const lock = join(REQUIREMENTS, 'torchtitan-release.lock');
    await pipInstall(python, ['--target', folder, '--upgrade', '-r', lock]);
  }
  return folder;
}
