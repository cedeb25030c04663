// The command line on files that are broken or hostile: one line on stderr, exit status 3, bounded memory, nothing executed.

import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, expect, test } from 'vitest';
import { UserError } from '../../src/base/errors.ts';
import { readMeasuredRun } from '../../src/measured/formats.ts';

const MAIN = resolve(import.meta.dirname, '../../src/cli/main.ts');
const folder = mkdtempSync(join(tmpdir(), 'memtracker-bad-input-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Runs a command and prints the largest resident set of the process it started (KiB) as the last line of stdout. */
const WITH_RSS =
  'import resource, subprocess, sys\n' +
  'done = subprocess.run(sys.argv[1:], capture_output=True, text=True)\n' +
  'sys.stdout.write(done.stdout); sys.stderr.write(done.stderr)\n' +
  'print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n' +
  'sys.exit(done.returncode)';

function report(path: string): { status: number | null; error: string; peakMiB: number } {
  const done = spawnSync(
    'python3',
    ['-c', WITH_RSS, process.execPath, '--import', 'tsx', MAIN, 'report', path],
    { encoding: 'utf8', timeout: 120_000 },
  );
  const peak = Number(done.stdout.trim().split('\n').at(-1));
  return { status: done.status, error: done.stderr.trim(), peakMiB: peak / 1024 };
}

function expectOneLine(result: ReturnType<typeof report>): void {
  expect(result.status).toBe(3);
  expect(result.error.split('\n')).toHaveLength(1);
  expect(result.error).not.toContain('    at ');
  expect(result.peakMiB).toBeLessThan(400);
}

function file(name: string, content: Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, content);
  return path;
}

/** Gzip members one after the other are one stream: 160 of them unpack to 10 GiB without anybody writing 10 GiB. */
function bomb(name: string, first: Uint8Array, repeated: Uint8Array): string {
  const member = gzipSync(repeated);
  return file(name, Buffer.concat([gzipSync(first), ...new Array<Uint8Array>(160).fill(member)]));
}

const MEMBER = 64 * 1024 * 1024;

test('a __reduce__ payload is refused by name and nothing in it is executed', () => {
  const canary = join(folder, 'canary');
  const path = join(folder, 'payload.pickle');
  const made = spawnSync('python3', [
    '-c',
    'import os, pickle, sys\n' +
      'class Payload:\n' +
      '    def __reduce__(self):\n' +
      '        return os.system, (f"touch {sys.argv[2]}",)\n' +
      'snapshot = {"segments": [], "device_traces": [[Payload()]]}\n' +
      'open(sys.argv[1], "wb").write(pickle.dumps(snapshot, protocol=4))',
    path,
    canary,
  ]);
  expect(made.status).toBe(0);
  const result = report(path);
  expectOneLine(result);
  expect(result.error).toContain('asks for posix.system (STACK_GLOBAL)');
  expect(result.error).toContain('nothing in the file was executed');
  expect(existsSync(canary)).toBe(false);
  // The payload is live: Python's own loader does run it.
  spawnSync('python3', ['-c', 'import pickle, sys; pickle.load(open(sys.argv[1], "rb"))', path]);
  expect(existsSync(canary)).toBe(true);
});

test('a snapshot that was cut off', () => {
  const path = join(folder, 'cut.pickle');
  spawnSync('python3', [
    '-c',
    'import pickle, sys\n' +
      'entry = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": []}\n' +
      'data = pickle.dumps({"segments": [], "device_traces": [[entry] * 500]}, protocol=4)\n' +
      'open(sys.argv[1], "wb").write(data[:-100])',
    path,
  ]);
  const result = report(path);
  expectOneLine(result);
  expect(result.error).toMatch(/cut off after \d+ bytes|for a second time/);
});

test('10 GB of zeros, plain and as a gzip bomb', () => {
  const path = file('zeros.pickle', Buffer.alloc(0));
  truncateSync(path, 10e9);
  const plain = report(path);
  expectOneLine(plain);
  expect(plain.error).toContain('it begins with zeros');
  const packed = report(bomb('zeros.pickle.gz', Buffer.alloc(1), Buffer.alloc(MEMBER)));
  expectOneLine(packed);
  expect(packed.error).toContain('it begins with zeros');
});

test('a gzip bomb that is a well-formed pickle', () => {
  const header = Buffer.from([0x80, 4]);
  const popped = Buffer.alloc(MEMBER, 'N0');
  const pops = report(bomb('pops.pickle.gz', header, popped));
  expectOneLine(pops);
  expect(pops.error).toContain('no memory snapshot compresses that well');
  const kept = Buffer.alloc(MEMBER, ']');
  const lists = report(bomb('lists.pickle.gz', header, kept));
  expect(lists.status).toBe(3);
  expect(lists.peakMiB).toBeLessThan(800);
  expect(lists.error).toMatch(/values on the stack|values to keep/);
});

test('files of other formats', async () => {
  const cases: readonly (readonly [string, Uint8Array, string])[] = [
    ['trace.json', Buffer.from('{"traceEvents": []}'), 'it looks like JSON'],
    ['model.pt', Buffer.from('PK\x03\x04rest', 'latin1'), 'it looks like a zip archive'],
    ['db.pickle', Buffer.from('SQLite format 3\0rest'), 'it looks like an SQLite database'],
    ['page.html', Buffer.from('<!DOCTYPE html>'), 'it looks like an HTML page'],
    ['pointer', Buffer.from('version https://git-lfs.github.com/spec/v1'), 'Git LFS pointer'],
    ['empty', Buffer.alloc(0), 'it is empty'],
    ['other.pickle', Buffer.from([0x80, 4, 0x4e, 0x2e]), 'its top value is not a dict'],
    ['dict.pickle', Buffer.from([0x80, 4, 0x7d, 0x2e]), 'not a memory snapshot'],
    ['broken.gz', damagedGzip(), 'damaged gzip'],
  ];
  for (const [name, content, message] of cases) {
    const error = await readMeasuredRun(file(name, content)).then(
      () => undefined,
      (caught: unknown) => caught,
    );
    expect(error).toBeInstanceOf(UserError);
    expect((error as UserError).message).toContain(message);
    expect((error as UserError).message).not.toContain('\n');
  }
  const missing = report(join(folder, 'missing'));
  expectOneLine(missing);
  expect(missing.error).toContain('cannot read');
});

/** A pickle's first chunk is whole, what follows is not. */
function damagedGzip(): Uint8Array {
  const values = Buffer.concat([Buffer.from([0x80, 4]), Buffer.alloc(2_000_000, 'N0')]);
  const packed = gzipSync(values);
  return packed.subarray(0, packed.length - 100);
}
