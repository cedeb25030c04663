import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { expect, test } from 'vitest';
import { COMMANDS } from '../../src/cli/commands.ts';
import { commandLineDocs } from '../../src/cli/docs.ts';
import { loadAdapters } from '../../src/sidecar/adapter.ts';
import { readTraceHeader } from '../../src/trace/reader.ts';
import { REPOSITORY } from './built_program.ts';
import { memtracker, startMemtracker, temporaryFolder } from './memtracker.ts';

test('docs/cli.md is what the option tables say; npm run generate writes it', () => {
  expect(readFileSync(join(REPOSITORY, 'docs', 'cli.md'), 'utf8')).toBe(
    commandLineDocs(COMMANDS, loadAdapters()),
  );
});

test('the help of a command has its options, their defaults and an example', async () => {
  const { exitCode, stdout, stderr } = await memtracker(['gpus', '--help']);
  expect(exitCode).toBe(0);
  expect(stderr).toBe('');
  expect(stdout).toMatchInlineSnapshot(`
    "Usage: memtracker gpus [options]

    List the GPUs that --gpu knows, with their usable bytes and where each was read.

    Options:
      --json       print JSON
      -q, --quiet  no notes and no progress on stderr
      -h, --help   display help for command

    Examples:
      # what may stand after --gpu
      memtracker gpus"
  `);
});

test('every command has a summary without a full stop and an example of itself', () => {
  for (const command of COMMANDS) {
    expect(command.summary, command.name).toMatch(/^[A-Z].*[^.]$/);
    expect(command.examples.length, command.name).toBeGreaterThan(0);
    for (const example of command.examples) {
      expect(example.command.startsWith(command.name), example.command).toBe(true);
    }
  }
});

test.each([
  [['gpsu'], "error: unknown command 'gpsu' (Did you mean gpus?); see memtracker --help"],
  [['gpus', 'extra'], 'error: too many arguments'],
  [['gpus', '--', 'x'], 'error: memtracker gpus takes nothing after --'],
  [['report'], "error: missing required argument 'TRACE'"],
])('%j is a usage error of one line', async (arguments_, start) => {
  const { exitCode, stdout, stderr } = await memtracker(arguments_);
  expect(exitCode).toBe(3);
  expect(stdout).toBe('');
  expect(stderr.split('\n')).toHaveLength(1);
  expect(stderr.startsWith(start), stderr).toBe(true);
});

test('no command prints the help and is a usage error', async () => {
  const { exitCode, stdout } = await memtracker([]);
  expect(exitCode).toBe(3);
  expect(stdout).toContain('Usage: memtracker');
});

test('the version is that of the package', async () => {
  const { version } = JSON.parse(readFileSync(join(REPOSITORY, 'package.json'), 'utf8')) as {
    version: string;
  };
  expect((await memtracker(['--version'])).stdout).toBe(version);
});

test('a reader that goes away early is no error', async () => {
  const { exitCode, stderr } = await execa(
    'bash',
    ['-o', 'pipefail', '-c', `"${process.execPath}" dist/cli/main.js gpus | head -1`],
    { cwd: REPOSITORY, reject: false },
  );
  expect(stderr).toBe('');
  expect(exitCode).toBe(0);
});

test('colours appear on a terminal, and NO_COLOR takes them away', async () => {
  const command = `"${process.execPath}" dist/cli/main.js gpsu`;
  // util-linux's script gives the command a terminal.
  const onTerminal = (env: Record<string, string | undefined>) =>
    execa('script', ['-qec', command, '/dev/null'], {
      cwd: REPOSITORY,
      reject: false,
      env: { TERM: 'xterm', NO_COLOR: undefined, FORCE_COLOR: undefined, ...env },
    });
  expect((await onTerminal({})).stdout).toContain('\u001b[31merror:');
  expect((await onTerminal({ NO_COLOR: '1' })).stdout).not.toContain('\u001b[');
});

test('the doctor says what is there as text and as JSON', async () => {
  const text = await memtracker(['doctor']);
  expect(text.exitCode, text.stdout).toBe(0);
  expect(text.stdout).toMatch(/^ok {6}Node .*\nok {6}environment .*torch 2\.14\.1/);
  const json = await memtracker(['doctor', '--json']);
  expect(JSON.parse(json.stdout)).toMatchObject({ schema: 'memtracker.doctor/1', healthy: true });
});

test('a first Ctrl-C during a set-up ends it and leaves nothing that looks whole', async () => {
  const env = { XDG_CACHE_HOME: temporaryFolder(), MEMTRACKER_PYTHON: undefined };
  const started = startMemtracker(['setup'], { env });
  await new Promise<void>((done) => started.stderr.once('data', () => done()));
  started.kill('SIGINT');
  expect((await started).exitCode).toBe(130);
  const doctor = await memtracker(['doctor'], { env });
  expect(doctor.exitCode).toBe(3);
  expect(doctor.stdout).toContain('run memtracker setup');
});

test('a place that cannot be written is named, whatever is written there', async () => {
  const folder = temporaryFolder();
  const trace = join(folder, 'trace.jsonl');
  writeFileSync(trace, '{"capacity":1073741824}\n{"op":"alloc","id":1,"size":512}\n');
  const place = join(folder, 'no', 'such', 'file');
  const replayed = await memtracker(['allocator', 'replay', trace, '--out', place]);
  expect(replayed.exitCode).toBe(3);
  expect(replayed.stderr).toContain(`error: cannot write ${place}`);
  expect(replayed.stderr.split('\n')).toHaveLength(1);
});

test('the declared versions of a job keep their last zero', async () => {
  const cwd = temporaryFolder();
  writeFileSync(join(cwd, 'train.py'), 'import torch\ntorch.empty(8, device="cuda")\n');
  const words = ['trace', '-q', '--out', 'run.mtrace', '--target', 'nccl=2.30', '--', 'train.py'];
  // 2: a script without an optimizer step is not covered.
  expect((await memtracker(words, { cwd })).exitCode).toBe(2);
  const { target } = await readTraceHeader(join(cwd, 'run.mtrace'));
  expect(target).toMatchObject({ nccl: { value: '2.30', from: 'flag', evidence: 'declared' } });
  const broken = await memtracker(['trace', '--target', 'nccl', '--', 'train.py'], { cwd });
  expect(broken.stderr).toBe('error: --target must be written NAME=VALUE, got "nccl"');
  expect(broken.exitCode).toBe(3);
});

test('the doctor installs nothing, whichever index is asked for', async () => {
  const cache = temporaryFolder();
  const env = {
    XDG_CACHE_HOME: cache,
    MEMTRACKER_PYTHON: undefined,
    MEMTRACKER_TORCH_INDEX: 'default',
  };
  const { exitCode, stdout } = await memtracker(['doctor'], { env });
  expect(exitCode).toBe(3);
  expect(stdout).toContain('not made yet; run memtracker setup');
  expect(readdirSync(cache)).toEqual([]);
});
