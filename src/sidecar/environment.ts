// The Python environment of the sidecar: made once for each lock in the user's cache folder, checked on every use.
//
//   $XDG_CACHE_HOME/memtracker/environments/<key>/            the virtual environment
//   $XDG_CACHE_HOME/memtracker/environments/<key>/memtracker.json   its stamp, written last
//
// The key is a hash over the locks and the Python version. A folder without a stamp belongs to a set-up that was
// interrupted: it is removed and made again. Only one process makes an environment at a time; the others wait and then
// find it made.

import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, rename, rm, statfs, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import lockfile from 'proper-lockfile';
import { z } from 'zod';
import { formatBytes, GiB } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import type { Adapter } from './adapter.ts';
import { packageFolder } from './package_folder.ts';
import { findPython, installedPackages, type PythonInterpreter, TORCH_VERSION } from './python.ts';

/** PyTorch's own index of CPU builds: no CUDA libraries, a tenth of the download. */
export const TORCH_CPU_INDEX = 'https://download.pytorch.org/whl/cpu';

/** How long PyTorch's index may take to answer before the default index is used (ms). */
const INDEX_PROBE_TIMEOUT = 10_000;

/** A set-up whose owner stopped breathing for so long is dead (ms); see proper-lockfile. */
const LOCK_STALE = 10_000;

/** Settings of the user's that would send an installation elsewhere than into the environment. */
const INSTALL_ENV = {
  PIP_USER: '0',
  PIP_TARGET: undefined,
  PIP_PREFIX: undefined,
  PYTHONPATH: undefined,
  PYTHONHOME: undefined,
};

/** The CUDA build of torch with its libraries unpacked. */
const NEEDED_BYTES = 8 * GiB;

export interface SetupOptions {
  readonly env: NodeJS.ProcessEnv;
  /**
   * `auto`: PyTorch's CPU index, or the default index when it does not answer. `default`: the default index.
   * Anything else: the URL of a wheel index. Undefined: MEMTRACKER_TORCH_INDEX, then `auto`.
   */
  readonly torchIndex?: string | undefined;
  /** Make the environment again even when it is whole. */
  readonly force?: boolean;
  readonly signal?: AbortSignal;
  /** Where the set-up is, for people. A stage is worth a line of a log, a detail only a live line. */
  readonly onProgress?: (text: string, kind: 'stage' | 'detail') => void;
}

export interface PythonEnvironment {
  readonly python: string;
  /** Null when MEMTRACKER_PYTHON names an environment of the user's. */
  readonly folder: string | null;
  readonly torch: string;
  readonly pythonVersion: string;
}

const stampSchema = z.object({
  created: z.string(),
  python: z.string(),
  torch: z.string(),
  /** The index that torch came from: a URL or `default`. */
  torch_index: z.string(),
  /** Framework locks that were installed on top, name to hash. */
  extras: z.record(z.string(), z.string()),
});
type Stamp = z.infer<typeof stampSchema>;

const REQUIREMENTS = packageFolder(join('python', 'requirements'));
const BASE_LOCKS = ['sidecar.lock', 'torch.lock'] as const;
const STAMP = 'memtracker.json';

/** Distributions that every environment must have, at any version but torch's. */
const REQUIRED = ['torch', 'pyzmq', 'msgpack'] as const;

export function cacheFolder(env: NodeJS.ProcessEnv): string {
  const base = env.XDG_CACHE_HOME;
  return join(base !== undefined && base !== '' ? base : join(homedir(), '.cache'), 'memtracker');
}

function lockHash(name: string): string {
  return createHash('sha256')
    .update(readFileSync(join(REQUIREMENTS, name)))
    .digest('hex');
}

function environmentKey(python: PythonInterpreter): string {
  const [major, minor] = python.version.split('.');
  const hash = createHash('sha256');
  for (const name of BASE_LOCKS) hash.update(lockHash(name));
  return `py${major}${minor}-torch${TORCH_VERSION}-${hash.digest('hex').slice(0, 12)}`;
}

function pythonOf(folder: string): string {
  return process.platform === 'win32'
    ? join(folder, 'Scripts', 'python.exe')
    : join(folder, 'bin', 'python');
}

function readStamp(folder: string): Stamp | undefined {
  try {
    const parsed = stampSchema.safeParse(JSON.parse(readFileSync(join(folder, STAMP), 'utf8')));
    return parsed.success ? parsed.data : undefined;
  } catch {
    return undefined;
  }
}

async function writeStamp(folder: string, stamp: Stamp): Promise<void> {
  const temporary = join(folder, `${STAMP}.${process.pid}`);
  await writeFile(temporary, `${JSON.stringify(stamp, undefined, 2)}\n`);
  await rename(temporary, join(folder, STAMP));
}

/**
 * The environment to run sidecars in, made first when it is not there.
 * @throws UserError when there is no usable Python, the environment named by MEMTRACKER_PYTHON lacks something, or an
 * installation fails (pip's last lines are in the message).
 */
export async function ensureEnvironment(options: SetupOptions): Promise<PythonEnvironment> {
  const given = options.env.MEMTRACKER_PYTHON;
  if (given !== undefined && given !== '') return checkEnvironment(given, null);
  const { folder, python } = await managedFolder(options.env);
  const wanted = options.torchIndex ?? options.env.MEMTRACKER_TORCH_INDEX;
  if (isMade(folder, wanted) && !options.force) return checkEnvironment(pythonOf(folder), folder);
  await underLock(folder, options, async () => {
    // Another process may have made it while this one waited.
    if (options.force || !isMade(folder, wanted)) await make(folder, python, options);
  });
  return checkEnvironment(pythonOf(folder), folder);
}

/** The folder of the managed environment and the Python that it is made with. Nothing is made. */
export async function managedFolder(
  env: NodeJS.ProcessEnv,
): Promise<{ folder: string; python: PythonInterpreter }> {
  const python = await findPython(env);
  return { folder: join(cacheFolder(env), 'environments', environmentKey(python)), python };
}

/** Whether the folder holds a whole environment, with torch from the index that is asked for, if one is. */
export function isMade(folder: string, torchIndex?: string): boolean {
  const stamp = readStamp(folder);
  if (stamp === undefined || !existsSync(pythonOf(folder))) return false;
  return torchIndex === undefined || torchIndex === 'auto' || stamp.torch_index === torchIndex;
}

async function checkEnvironment(python: string, folder: string | null): Promise<PythonEnvironment> {
  const origin = folder === null ? `MEMTRACKER_PYTHON=${python}` : python;
  const installed = await installedPackages(python, REQUIRED);
  const remedy =
    folder === null
      ? 'correct or unset MEMTRACKER_PYTHON'
      : `remove ${folder} and run memtracker setup again`;
  if (installed === undefined) {
    throw new UserError('ENVIRONMENT', `${origin} does not run as a Python; ${remedy}`);
  }
  const missing = REQUIRED.filter((name) => installed.versions[name] === null);
  if (missing.length > 0) {
    const pinned = missing.map((name) => (name === 'torch' ? `torch==${TORCH_VERSION}` : name));
    throw new UserError(
      'ENVIRONMENT',
      `${origin} lacks ${missing.join(', ')}: run ${python} -m pip install ${pinned.join(' ')}, or ${remedy}`,
    );
  }
  const torch = installed.versions.torch ?? '';
  if (torch.split('+')[0] !== TORCH_VERSION) {
    throw new UserError(
      'TORCH_VERSION',
      `${origin} has torch ${torch}, and memtracker's hooks are written for ${TORCH_VERSION}: run ${python} -m pip install torch==${TORCH_VERSION}, or ${remedy}`,
    );
  }
  return { python, folder, torch, pythonVersion: installed.python };
}

/**
 * Installs what a checkout of the adapter's framework imports, from its lock.
 * @throws UserError when the environment is the user's own (it is used as it is) or pip fails.
 */
export async function installFramework(
  environment: PythonEnvironment,
  adapter: Adapter,
  options: SetupOptions,
): Promise<void> {
  const lock = adapter.manifest.requirements;
  if (lock === null) return;
  const path = join(REQUIREMENTS, lock);
  const { folder } = environment;
  if (folder === null) {
    throw new UserError(
      'ENVIRONMENT',
      `MEMTRACKER_PYTHON names an environment of yours, which memtracker leaves as it is; to add what ${adapter.manifest.title} needs run ${environment.python} -m pip install -r ${path}`,
    );
  }
  await underLock(folder, options, async () => {
    const stamp = readStamp(folder);
    if (stamp === undefined || hasFramework(stamp, adapter)) return;
    const arguments_ = ['install', '--require-hashes', '--no-deps', '-r', path];
    await pip(pythonOf(folder), arguments_, `packages of ${adapter.manifest.title}`, options);
    const extras = { ...stamp.extras, [adapter.manifest.name]: lockHash(lock) };
    await writeStamp(folder, { ...stamp, extras });
  });
}

function hasFramework(stamp: Stamp, { manifest }: Adapter): boolean {
  const { requirements, name } = manifest;
  return requirements === null || stamp.extras[name] === lockHash(requirements);
}

/**
 * Sees to it that a checkout of the adapter's framework finds what it imports: an environment of ours gets the framework's lock
 * the first time, one of the user's is checked.
 * @throws UserError when the installation fails, or naming what is missing.
 */
export async function provideFramework(
  environment: PythonEnvironment,
  adapter: Adapter,
  options: SetupOptions,
): Promise<void> {
  const stamp = environment.folder === null ? undefined : readStamp(environment.folder);
  if (stamp !== undefined && !hasFramework(stamp, adapter)) {
    await installFramework(environment, adapter, options);
  }
  await checkFrameworkPackages(environment, adapter);
}

/**
 * @throws UserError naming the modules that a checkout needs and the environment lacks, with the command that installs them.
 */
export async function checkFrameworkPackages(
  environment: PythonEnvironment,
  adapter: Adapter,
): Promise<void> {
  const { packages, title } = adapter.manifest;
  if (packages.length === 0) return;
  const modules = packages.map((item) => item.module);
  const installed = await installedPackages(environment.python, [], modules);
  const missing = packages.filter((item) => installed?.modules[item.module] !== true);
  if (missing.length === 0) return;
  const names = missing.map((item) => item.module).join(', ');
  throw new UserError(
    'PACKAGES',
    `${title} imports ${names}, which ${missing.length === 1 ? 'is' : 'are'} not installed: run ${installCommand(environment, adapter)}`,
  );
}

/** The command line that adds a framework's packages to the environment. */
export function installCommand(environment: PythonEnvironment, adapter: Adapter): string {
  const { name, requirements, packages } = adapter.manifest;
  if (environment.folder !== null && requirements !== null) {
    return `memtracker setup --framework ${name}`;
  }
  const what =
    requirements === null
      ? packages.map((item) => item.requirement).join(' ')
      : `-r ${join(REQUIREMENTS, requirements)}`;
  return `${environment.python} -m pip install ${what}`;
}

async function underLock(
  folder: string,
  options: SetupOptions,
  action: () => Promise<void>,
): Promise<void> {
  await mkdir(join(folder, '..'), { recursive: true }).catch((error: unknown) => {
    throw cannotWriteCache(folder, error);
  });
  let release: (() => Promise<void>) | undefined;
  while (release === undefined) {
    options.signal?.throwIfAborted();
    try {
      release = await lockfile.lock(folder, {
        realpath: false,
        stale: LOCK_STALE,
        lockfilePath: `${folder}.lock`,
      });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ELOCKED')
        throw cannotWriteCache(folder, error);
      options.onProgress?.(
        'another process is setting up the Python environment; waiting for it',
        'detail',
      );
      await new Promise((done) => setTimeout(done, 500));
    }
  }
  try {
    await action();
  } finally {
    await release();
  }
}

function cannotWriteCache(folder: string, error: unknown): UserError {
  return new UserError(
    'CACHE',
    `cannot write to ${join(folder, '..')} (${(error as Error).message}); set XDG_CACHE_HOME to a folder that can be written`,
    { cause: error },
  );
}

async function make(
  folder: string,
  python: PythonInterpreter,
  options: SetupOptions,
): Promise<void> {
  const { onProgress } = options;
  await rm(folder, { recursive: true, force: true });
  await checkSpace(folder);
  onProgress?.(`making a Python ${python.version} environment in ${folder}`, 'stage');
  const made = await execa(python.executable, ['-m', 'venv', folder], {
    env: INSTALL_ENV,
    reject: false,
    all: true,
    ...(options.signal && { cancelSignal: options.signal }),
  });
  options.signal?.throwIfAborted();
  if (made.exitCode !== 0) {
    const said = (made.all ?? '').split('\n').slice(-5).join('\n');
    throw new UserError('VENV', `${python.executable} -m venv ${folder} failed:\n${said}`);
  }
  const interpreter = pythonOf(folder);
  const sidecar = ['install', '--require-hashes', '-r', join(REQUIREMENTS, 'sidecar.lock')];
  await pip(interpreter, sidecar, 'packages of the sidecar', options);
  const index = await installTorch(interpreter, options);
  const installed = await installedPackages(interpreter, ['torch']);
  await writeStamp(folder, {
    created: new Date().toISOString(),
    python: python.version,
    torch: installed?.versions.torch ?? '',
    torch_index: index,
    extras: {},
  });
  onProgress?.(`the Python environment is ready: torch ${installed?.versions.torch}`, 'stage');
}

async function checkSpace(folder: string): Promise<void> {
  const { bavail, bsize } = await statfs(join(folder, '..'));
  const free = bavail * bsize;
  if (free >= NEEDED_BYTES) return;
  throw new UserError(
    'DISK',
    `${formatBytes(free)} are free where ${folder} goes, up to ${formatBytes(NEEDED_BYTES)} are needed; free some space or set XDG_CACHE_HOME to another disk`,
  );
}

/** Installs torch and returns the index that it came from. */
async function installTorch(python: string, options: SetupOptions): Promise<string> {
  const wanted = options.torchIndex ?? options.env.MEMTRACKER_TORCH_INDEX ?? 'auto';
  const index =
    wanted === 'auto'
      ? (await hasCpuBuild(python, options))
        ? TORCH_CPU_INDEX
        : 'default'
      : wanted;
  if (index === 'default') {
    // All of torch's dependencies are in the two locks, so that pip need not resolve.
    const lock = join(REQUIREMENTS, 'torch.lock');
    const arguments_ = ['install', '--require-hashes', '--no-deps', '-r', lock];
    await pip(python, arguments_, `torch ${TORCH_VERSION} from the default index`, options);
    return index;
  }
  const build = index === TORCH_CPU_INDEX ? '+cpu' : '';
  const requirement = `torch==${TORCH_VERSION}${build}`;
  const arguments_ = ['install', '--index-url', index, requirement];
  await pip(python, arguments_, `torch ${TORCH_VERSION} from ${index}`, options);
  return index;
}

/** Whether PyTorch's index answers and has the CPU build for this interpreter. Asked through pip, which knows proxies. */
async function hasCpuBuild(python: string, options: SetupOptions): Promise<boolean> {
  if (process.platform !== 'linux') return false; // The default index has CPU builds for the others.
  options.onProgress?.(`looking for a CPU build of torch at ${TORCH_CPU_INDEX}`, 'stage');
  const query = ['index', 'versions', 'torch', '--index-url', TORCH_CPU_INDEX];
  const result = await execa(python, ['-m', 'pip', ...query, '--timeout', '5', '--retries', '0'], {
    env: INSTALL_ENV,
    reject: false,
    timeout: INDEX_PROBE_TIMEOUT,
    stdin: 'ignore',
    ...(options.signal && { cancelSignal: options.signal }),
  });
  options.signal?.throwIfAborted();
  return result.exitCode === 0 && result.stdout.includes(`${TORCH_VERSION}+cpu`);
}

async function pip(
  python: string,
  arguments_: readonly string[],
  what: string,
  options: SetupOptions,
): Promise<void> {
  const { onProgress, signal } = options;
  onProgress?.(`installing ${what}`, 'stage');
  const tail: string[] = [];
  const started = Date.now();
  let step = 'starting';
  const tell = () => {
    const seconds = Math.round((Date.now() - started) / 1000);
    onProgress?.(`installing ${what}: ${step} (${seconds} s)`, 'detail');
  };
  const clock = setInterval(tell, 1_000);
  const worker = execa(
    python,
    [
      '-m',
      'pip',
      ...arguments_,
      '--disable-pip-version-check',
      '--no-input',
      '--progress-bar',
      'off',
    ],
    {
      env: INSTALL_ENV,
      reject: false,
      all: true,
      buffer: false,
      stdin: 'ignore',
      forceKillAfterDelay: 3_000,
      ...(signal && { cancelSignal: signal }),
    },
  );
  try {
    for await (const line of worker.iterable({ from: 'all' })) {
      tail.push(line);
      if (tail.length > 12) tail.shift();
      step = pipStep(line) ?? step;
      tell();
    }
  } finally {
    clearInterval(clock);
  }
  const result = await worker;
  signal?.throwIfAborted();
  if (result.exitCode !== 0) {
    throw new UserError(
      'PIP',
      `installing ${what} failed; pip said:\n${tail.join('\n')}\nRun memtracker setup again once that is mended, or set MEMTRACKER_PYTHON to an environment that has torch ${TORCH_VERSION}.`,
    );
  }
}

function pipStep(line: string): string | undefined {
  const download = /Downloading (?:\S*\/)?([^/\s]+?)-[^-\s]+-\S+\.whl(?:\.metadata)? (\(.*\))/.exec(
    line,
  );
  if (download !== null) return `downloading ${download[1]} ${download[2]}`;
  const local = /Processing (?:\S*\/)?([^/\s]+?)-/.exec(line);
  if (local !== null) return local[1];
  const collecting = /^Collecting ([^=\s]+)/.exec(line);
  if (collecting !== null) return collecting[1];
  if (line.startsWith('Installing collected packages')) return 'unpacking';
  return undefined;
}

export interface EnvironmentState {
  readonly folder: string;
  readonly stamp: Stamp | undefined;
  /** There is a folder but its set-up never ended. */
  readonly halfMade: boolean;
}

/** What is there now, for `memtracker doctor`. */
export async function environmentState(env: NodeJS.ProcessEnv): Promise<EnvironmentState> {
  const { folder } = await managedFolder(env);
  const stamp = readStamp(folder);
  return { folder, stamp, halfMade: stamp === undefined && existsSync(folder) };
}
