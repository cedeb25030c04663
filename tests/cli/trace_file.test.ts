// Trace files that are cut, damaged, foreign or of the future, made from one real trace.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, expect, test } from 'vitest';
import { PREAMBLE_BYTES, RECORD_HEAD_BYTES } from '../../src/trace/file_format.ts';
import { memtracker, temporaryFolder } from './memtracker.ts';

const SCRIPT = `
import torch
from torch import nn
model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(40)]).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(200):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
`;

let whole: Buffer;

beforeAll(async () => {
  const folder = temporaryFolder();
  writeFileSync(join(folder, 'train.py'), SCRIPT);
  const options = ['--steps', '100', '--out', 'run.mtrace'];
  const traced = await memtracker(['trace', '-q', ...options, '--', 'train.py'], { cwd: folder });
  if (traced.exitCode !== 0) throw new Error(traced.stderr);
  whole = readFileSync(join(folder, 'run.mtrace'));
});

/** `memtracker report` on a file of these bytes. */
async function report(content: Buffer) {
  const path = join(temporaryFolder(), 'run.mtrace');
  writeFileSync(path, content);
  return { path, ...(await memtracker(['report', path])) };
}

/** Where each record begins. */
function recordOffsets(file: Buffer): number[] {
  const offsets = [];
  for (let offset = PREAMBLE_BYTES; offset < file.length; ) {
    offsets.push(offset);
    offset += RECORD_HEAD_BYTES + file.readUInt32LE(offset + 1);
  }
  return offsets;
}

test('the whole trace reports with 0', async () => {
  const result = await report(whole);
  expect(result.exitCode, result.stderr).toBe(0);
  expect(result.stdout).not.toContain('Incomplete');
});

test('a cut trace reports what it holds, says where it ends, and exits with 2', async () => {
  const offsets = recordOffsets(whole);
  expect(offsets.length).toBeGreaterThan(4);
  const lastBatch = offsets.at(-2) as number;
  const result = await report(whole.subarray(0, lastBatch + 20));
  expect(result.exitCode).toBe(2);
  expect(result.stdout).toContain(`the file is cut off in the record at byte ${lastBatch}`);
  expect(result.stdout).toContain('step[step=1]');
});

test('a damaged record is named by its place, what stands before it is reported', async () => {
  const damaged = Buffer.from(whole);
  const lastBatch = recordOffsets(whole).at(-2) as number;
  damaged[lastBatch + RECORD_HEAD_BYTES + 5] ^= 0xff;
  const result = await report(damaged);
  expect(result.exitCode).toBe(2);
  expect(result.stdout).toContain(`the record at byte ${lastBatch} is damaged (checksum)`);
  expect(result.stdout).toContain('step[step=1]');
});

test('a trace of a newer version is refused with what to do', async () => {
  const newer = Buffer.from(whole);
  newer[6] = 200;
  const { path, ...result } = await report(newer);
  expect(result.exitCode).toBe(3);
  expect(result.stdout).toBe('');
  expect(result.stderr).toBe(
    `error: ${path} has trace format 200; this memtracker reads up to 1: update it`,
  );
});

test.each([
  ['an empty file', Buffer.alloc(0)],
  ['text', Buffer.from('not a trace')],
  ['random bytes', Buffer.from([...Array(4096).keys()].map((i) => (i * 7919) % 251))],
])('%s is refused in one sentence', async (_what, content) => {
  const { path, ...result } = await report(content);
  expect(result.exitCode).toBe(3);
  expect(result.stdout).toBe('');
  expect(result.stderr).toContain(path);
  expect(result.stderr.split('\n')).toHaveLength(1);
});

test('a trace that ends inside its header is refused', async () => {
  const result = await report(whole.subarray(0, 60));
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('has no readable header; trace the job again');
});

test('a file that is not there is named', async () => {
  const result = await memtracker(['report', '/nonexistent/run.mtrace']);
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('/nonexistent/run.mtrace');
});
