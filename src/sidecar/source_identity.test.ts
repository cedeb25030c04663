import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { recordedEnvironment, sourceIdentity } from './source_identity.ts';

let folder: string;

const git = (...arguments_: string[]) =>
  execa('git', ['-c', 'user.name=t', '-c', 'user.email=t@t', ...arguments_], { cwd: folder });

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'memtracker-test-'));
  await git('init', '-q');
  writeFileSync(join(folder, 'train.py'), 'a = 1\n');
  writeFileSync(join(folder, '.gitignore'), '*.log\n');
  await git('add', '.');
  await git('commit', '-q', '-m', 'first');
});

afterEach(() => rmSync(folder, { recursive: true, force: true }));

test('a clean work tree is its commit', async () => {
  const { stdout } = await git('rev-parse', 'HEAD');
  writeFileSync(join(folder, 'out.log'), 'ignored by git');
  expect(await sourceIdentity(folder)).toEqual({
    commit: stdout,
    describe: stdout.slice(0, 7),
    dirty: false,
    diff_sha256: null,
  });
});

test('the same change has the same hash, another change another', async () => {
  writeFileSync(join(folder, 'train.py'), 'a = 2\n');
  const first = await sourceIdentity(folder);
  expect(first.dirty).toBe(true);
  expect(first.diff_sha256).toMatch(/^[0-9a-f]{64}$/);
  writeFileSync(join(folder, 'train.py'), 'a = 3\n');
  const second = await sourceIdentity(folder);
  expect(second.diff_sha256).not.toBe(first.diff_sha256);
  writeFileSync(join(folder, 'train.py'), 'a = 2\n');
  expect(await sourceIdentity(folder)).toEqual(first);
});

test('an untracked file makes it dirty, and its content counts', async () => {
  writeFileSync(join(folder, 'new.py'), 'b = 1\n');
  const first = await sourceIdentity(folder);
  expect(first.dirty).toBe(true);
  writeFileSync(join(folder, 'new.py'), 'b = 2\n');
  expect((await sourceIdentity(folder)).diff_sha256).not.toBe(first.diff_sha256);
});

test('a folder without git is unknown, not clean', async () => {
  const plain = mkdtempSync(join(tmpdir(), 'memtracker-test-'));
  try {
    const unknown = { commit: null, describe: null, dirty: null, diff_sha256: null };
    expect(await sourceIdentity(plain)).toEqual(unknown);
  } finally {
    rmSync(plain, { recursive: true });
  }
});

test('only variables that change memory are recorded, and no path or credential', () => {
  expect(
    recordedEnvironment({
      HOME: '/home/someone',
      AWS_SECRET_ACCESS_KEY: 'x',
      PYTORCH_ALLOC_CONF: 'expandable_segments:True',
      NCCL_BUFFSIZE: '8388608',
      NCCL_TOPO_FILE: '/etc/private/topology.xml',
      NCCLX: 'no',
      PATH: '/bin',
    }),
  ).toEqual({
    NCCL_BUFFSIZE: '8388608',
    NCCL_TOPO_FILE: '(not recorded)',
    PYTORCH_ALLOC_CONF: 'expandable_segments:True',
  });
});
