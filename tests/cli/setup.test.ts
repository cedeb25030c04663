// The managed environment, made for real from the registry. Only torch is replaced, by an empty wheel in an index of its own
// (`--torch-index`), so that a set-up takes seconds instead of gigabytes; .ci/run makes the whole one.

import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { execa } from 'execa';
import { expect, test } from 'vitest';
import { findPython } from '../../src/sidecar/python.ts';
import { memtracker, startMemtracker, temporaryFolder, untilLine } from './memtracker.ts';

const EMPTY_WHEEL = `
import sys, zipfile
folder, version = sys.argv[1:]
info = f"torch-{version}.dist-info"
files = {
    "torch/__init__.py": "",
    f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: torch\\nVersion: {version}\\n",
    f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
}
files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in files) + f"{info}/RECORD,,\\n"
with zipfile.ZipFile(f"{folder}/torch-{version}-py3-none-any.whl", "w") as wheel:
    for name, text in files.items():
        wheel.writestr(name, text)
`;

/** A simple index with one empty wheel. The local version label wins over a real 2.14.1 of an extra index. */
async function emptyTorchIndex(version: string): Promise<string> {
  const folder = join(temporaryFolder(), 'simple', 'torch');
  mkdirSync(folder, { recursive: true });
  const python = await findPython(process.env);
  await execa(python.executable, ['-c', EMPTY_WHEEL, folder, version]);
  const wheel = `torch-${version}-py3-none-any.whl`;
  writeFileSync(join(folder, 'index.html'), `<a href="${encodeURIComponent(wheel)}">${wheel}</a>`);
  return pathToFileURL(join(folder, '..')).href;
}

async function environment(version = '2.14.1+empty') {
  return {
    XDG_CACHE_HOME: temporaryFolder(),
    MEMTRACKER_TORCH_INDEX: await emptyTorchIndex(version),
    MEMTRACKER_PYTHON: undefined,
  };
}

test('two set-ups at once make one environment, and a third finds it', async () => {
  const env = await environment();
  const [first, second] = await Promise.all([
    memtracker(['setup'], { env }),
    memtracker(['setup'], { env }),
  ]);
  expect([first.exitCode, second.exitCode], first.stderr + second.stderr).toEqual([0, 0]);
  expect(first.stdout).toBe(second.stdout);
  expect(first.stdout).toMatch(/^torch 2\.14\.1\+empty on Python 3\.\d+\.\d+: .*\/bin\/python$/);
  const makers = [first, second].filter(({ stderr }) => stderr.includes('making a Python'));
  expect(makers).toHaveLength(1);
  expect(readdirSync(join(env.XDG_CACHE_HOME, 'memtracker', 'environments'))).toHaveLength(1);

  const third = await memtracker(['setup'], { env });
  expect(third).toMatchObject({ exitCode: 0, stdout: first.stdout, stderr: '' });
}, 400_000);

test('a set-up that was killed half-way is detected and made again', async () => {
  const env = await environment();
  const environments = join(env.XDG_CACHE_HOME, 'memtracker', 'environments');
  const killed = startMemtracker(['setup'], { env });
  await untilLine(killed, 'installing packages of the sidecar');
  killed.kill('SIGKILL');
  await killed;
  const [folder] = readdirSync(environments).filter((name) => !name.endsWith('.lock'));
  expect(existsSync(join(environments, folder, 'memtracker.json'))).toBe(false);

  const doctor = await memtracker(['doctor'], { env });
  expect(doctor.exitCode).toBe(3);
  expect(doctor.stdout).toContain('was interrupted; run memtracker setup, which makes it again');

  const again = await memtracker(['setup'], { env });
  expect(again.exitCode, again.stderr).toBe(0);
  expect((await memtracker(['doctor'], { env })).exitCode).toBe(0);
}, 400_000);

test('another torch than the pinned one is refused with the command that mends it', async () => {
  const folder = temporaryFolder();
  const python = await findPython(process.env);
  await execa(python.executable, ['-m', 'venv', folder]);
  const own = join(folder, 'bin', 'python');
  const env = { MEMTRACKER_PYTHON: own };

  const empty = await memtracker(['setup'], { env });
  expect(empty.exitCode).toBe(3);
  expect(empty.stderr).toBe(
    `error: MEMTRACKER_PYTHON=${own} lacks torch, pyzmq, msgpack: run ${own} -m pip install torch==2.14.1 pyzmq msgpack, or correct or unset MEMTRACKER_PYTHON`,
  );

  const index = await emptyTorchIndex('2.13.0');
  const pip = [
    '-m',
    'pip',
    'install',
    '-q',
    'pyzmq',
    'msgpack',
    `${index}/torch/torch-2.13.0-py3-none-any.whl`,
  ];
  await execa(own, pip);
  const old = await memtracker(['setup'], { env });
  expect(old.exitCode).toBe(3);
  expect(old.stderr).toContain(
    `has torch 2.13.0, and memtracker's hooks are written for 2.14.1: run ${own} -m pip install torch==2.14.1`,
  );
}, 400_000);

test('an installation that fails is told in the words of pip, and nothing looks whole', async () => {
  const env = { ...(await environment()), PIP_NO_INDEX: '1', PIP_FIND_LINKS: '' };
  const result = await memtracker(['setup', '-q'], { env });
  expect(result.exitCode).toBe(3);
  expect(result.stdout).toBe('');
  expect(result.stderr).toMatch(
    /^error: installing packages of the sidecar failed; pip said:\n.*No matching distribution found/s,
  );
  expect((await memtracker(['doctor'], { env })).exitCode).toBe(3);
}, 200_000);

test('the first trace of a framework installs what its checkouts import', async () => {
  const env = await environment();
  expect((await memtracker(['setup'], { env })).exitCode).toBe(0);
  const checkout = temporaryFolder();
  for (const file of ['megatron/training/training.py', 'megatron/core/__init__.py']) {
    mkdirSync(join(checkout, dirname(file)), { recursive: true });
    writeFileSync(join(checkout, file), '');
  }
  const job = ['trace', '--framework', 'megatron', '--checkout', checkout, '--', '--bf16'];
  // Without an index the installation, which comes before anything else, is where it ends.
  const result = await memtracker(job, { env: { ...env, PIP_NO_INDEX: '1' }, cwd: checkout });
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('installing packages of Megatron-LM failed; pip said:');
}, 400_000);

test('MEMTRACKER_PYTHON that is no Python is refused', async () => {
  const env = { MEMTRACKER_PYTHON: '/nonexistent/python' };
  const result = await memtracker(['doctor'], { env });
  expect(result.exitCode).toBe(3);
  expect(result.stdout).toContain('MEMTRACKER_PYTHON=/nonexistent/python does not run as a Python');
});

test('a cache folder that cannot be written is named', async () => {
  const env = { ...(await environment()), XDG_CACHE_HOME: '/dev/null' };
  const result = await memtracker(['setup'], { env });
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('set XDG_CACHE_HOME to a folder that can be written');
});
