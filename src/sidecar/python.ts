// Finding a Python to make the environment with, and asking an interpreter what it has.

import { existsSync, readdirSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { z } from 'zod';
import { UserError } from '../base/errors.ts';

/** The release of PyTorch whose private hooks the sidecar uses. */
export const TORCH_VERSION = '2.14.1';

/** Oldest Python that the sidecar is written for, and the first that PyTorch 2.14.1 has no wheel for. */
const MIN_MINOR = 11;
const END_MINOR = 15;

const NAMES = ['python3', 'python3.13', 'python3.12', 'python3.11', 'python3.14', 'python'];

/** How long an interpreter may take to answer (ms). A pyenv shim that leads nowhere answers at once. */
const PROBE_TIMEOUT = 20_000;

export interface PythonInterpreter {
  /** Absolute path of the executable as Python sees it. */
  readonly executable: string;
  /** `3.11.2` */
  readonly version: string;
  /** Has venv and ensurepip (Debian splits them off). */
  readonly canMakeEnvironments: boolean;
}

const probeSchema = z.object({
  executable: z.string(),
  version: z.tuple([z.int(), z.int(), z.int()]),
  venv: z.boolean(),
});

const PROBE = `
import importlib.util as u, json, sys
print(json.dumps({"executable": sys.executable, "version": sys.version_info[:3],
    "venv": all(u.find_spec(m) for m in ("venv", "ensurepip"))}))
`;

/** What an interpreter says of itself, or undefined when it does not run. */
export async function probePython(command: string): Promise<PythonInterpreter | undefined> {
  const result = await execa(command, ['-I', '-c', PROBE], {
    reject: false,
    timeout: PROBE_TIMEOUT,
    stdin: 'ignore',
  });
  if (result.exitCode !== 0) return undefined;
  let raw: unknown;
  try {
    raw = JSON.parse(result.stdout);
  } catch {
    return undefined;
  }
  const parsed = probeSchema.safeParse(raw);
  if (!parsed.success) return undefined;
  const { executable, version, venv } = parsed.data;
  return { executable, version: version.join('.'), canMakeEnvironments: venv };
}

function isSupported(version: string): boolean {
  const [major, minor] = version.split('.').map(Number);
  return major === 3 && minor >= MIN_MINOR && minor < END_MINOR;
}

/** pyenv keeps interpreters where no shim need be active: `~/.pyenv/versions/3.12.1/bin/python`. */
function pyenvInterpreters(env: NodeJS.ProcessEnv): string[] {
  const versions = join(env.PYENV_ROOT ?? join(homedir(), '.pyenv'), 'versions');
  if (!existsSync(versions)) return [];
  return readdirSync(versions)
    .sort((a, b) => b.localeCompare(a, 'en', { numeric: true }))
    .map((version) => join(versions, version, 'bin', 'python'));
}

/** @throws UserError that names what was tried. */
export async function findPython(env: NodeJS.ProcessEnv): Promise<PythonInterpreter> {
  const tried: string[] = [];
  for (const command of [...NAMES, ...pyenvInterpreters(env)]) {
    const found = await probePython(command);
    if (found === undefined) continue;
    if (!isSupported(found.version)) tried.push(`${command} is ${found.version}`);
    else if (!found.canMakeEnvironments) tried.push(`${command} has no venv module`);
    else return found;
  }
  const seen = tried.length === 0 ? 'no Python was found' : tried.join('; ');
  throw new UserError(
    'PYTHON',
    `Python 3.${MIN_MINOR} to 3.${END_MINOR - 1} with venv is needed (${seen}); install it (Debian: apt install python3 python3-venv) or point MEMTRACKER_PYTHON at an environment that has torch ${TORCH_VERSION}`,
  );
}

const packagesSchema = z.object({
  python: z.string(),
  versions: z.record(z.string(), z.string().nullable()),
  modules: z.record(z.string(), z.boolean()),
});
export type InstalledPackages = z.infer<typeof packagesSchema>;

const PACKAGES = `
import importlib.metadata as m, importlib.util as u, json, platform, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
def present(name):
    try: return u.find_spec(name) is not None
    except (ImportError, ValueError): return False
names, modules = json.loads(sys.argv[1])
print(json.dumps({"python": platform.python_version(), "versions": {n: version(n) for n in names},
    "modules": {n: present(n) for n in modules}}))
`;

/**
 * Versions of distributions and presence of modules in an interpreter's environment, without importing them.
 * Undefined when the interpreter does not run.
 */
export async function installedPackages(
  python: string,
  distributions: readonly string[],
  modules: readonly string[] = [],
): Promise<InstalledPackages | undefined> {
  const names = JSON.stringify([distributions, modules]);
  const result = await execa(python, ['-c', PACKAGES, names], {
    reject: false,
    timeout: PROBE_TIMEOUT,
    stdin: 'ignore',
  });
  if (result.exitCode !== 0) return undefined;
  return packagesSchema.parse(JSON.parse(result.stdout));
}

const DISTRIBUTIONS = `
import importlib.metadata as m
print(*sorted({d.metadata["Name"] + "==" + d.version for d in m.distributions()}))
`;

/** Name and version of everything that an interpreter finds installed. @throws ExecaError when it does not run. */
export async function installedDistributions(
  python: string,
  env: Readonly<Record<string, string | undefined>>,
): Promise<string> {
  const { stdout } = await execa(python, ['-c', DISTRIBUTIONS], { env, stdin: 'ignore' });
  return stdout;
}
