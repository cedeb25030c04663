import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32, deflateRawSync } from 'node:zlib';
import { pack } from 'msgpackr';
import { afterAll, expect, test } from 'vitest';
import {
  alloc,
  begin,
  close,
  cuda,
  end,
  FOOTER,
  free,
  HEADER,
  writeBatches,
} from '../../tests/traces/event_list.ts';
import { PREAMBLE_BYTES, RECORD_HEAD_BYTES, RecordKind } from './file_format.ts';
import { readTrace, readTraceHeader } from './reader.ts';

const folder = mkdtempSync(join(tmpdir(), 'memtracker-trace-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));
let files = 0;
const newPath = () => join(folder, `${files++}.mtrace`);

const BATCHES = [
  [cuda(), begin(1, 'step', { step: 1 })],
  [alloc(1, 4096), alloc(2, 512)],
  [free(1), end(1, 50), close(6)],
];

async function wholeFile(): Promise<Buffer> {
  const path = newPath();
  await writeBatches(path, BATCHES);
  return readFileSync(path);
}

async function reading(content: Buffer) {
  const path = newPath();
  writeFileSync(path, content);
  return readTrace(path);
}

function recordOffsets(file: Buffer): number[] {
  const offsets = [];
  for (let at = PREAMBLE_BYTES; at < file.length; ) {
    offsets.push(at);
    at += RECORD_HEAD_BYTES + file.readUInt32LE(at + 1);
  }
  return offsets;
}

/** The file with the payload of one record exchanged, its length and checksum right again. */
function withRecord(file: Buffer, index: number, payload: Uint8Array): Buffer {
  const offsets = recordOffsets(file);
  const from = offsets[index];
  const head = Buffer.from(file.subarray(from, from + RECORD_HEAD_BYTES));
  head.writeUInt32LE(payload.length, 1);
  head.writeUInt32LE(crc32(payload), 5);
  return Buffer.concat([
    file.subarray(0, from),
    head,
    payload,
    file.subarray(offsets[index + 1] ?? file.length),
  ]);
}

test('what was written is read back', async () => {
  const trace = await reading(await wholeFile());
  expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
  expect(trace.header).toEqual(HEADER);
  expect(trace.footer).toEqual(FOOTER);
  expect([...trace.events.bytes]).toEqual([0, 4096, 512, 0, 0]);
  expect(trace.phases[1]).toMatchObject({
    path: 'step[step=1]',
    beginEvent: 0,
    endEvent: 4,
    endTime: 50,
    closed: true,
  });
});

test('a trace cut at any byte keeps every whole batch and never throws after the header', async () => {
  const file = await wholeFile();
  const [header, first, second, third, footer] = recordOffsets(file);
  expect(header).toBe(PREAMBLE_BYTES);
  for (let length = first; length < file.length; length++) {
    const { integrity, events } = await reading(file.subarray(0, length));
    expect(integrity.complete).toBe(length >= file.length);
    expect(integrity.faults.length).toBeGreaterThan(0);
    const whole = length < second ? 0 : length < third ? 1 : length < footer ? 3 : 5;
    expect(events.length, `cut at ${length}`).toBe(whole);
  }
});

test('a trace without an ending says that it was not closed', async () => {
  const file = await wholeFile();
  const { integrity } = await reading(file.subarray(0, recordOffsets(file)[4]));
  expect(integrity.faults).toEqual([
    'the trace was not closed: its recorder was killed or is still running',
  ]);
});

test.each([
  [[0, 2, 3], 'batch 1 is missing'],
  [[0, 4, 5], 'batches 1 to 3 are missing'],
])('batches numbered %j: %s, and what comes after is kept', async (sequence, sentence) => {
  const path = newPath();
  await writeBatches(path, BATCHES, sequence);
  const { integrity, events } = await readTrace(path);
  expect(integrity.complete).toBe(false);
  expect(integrity.faults).toEqual([sentence]);
  expect(events.length).toBe(5);
});

test('a batch that is there twice counts once', async () => {
  const path = newPath();
  const [first, second, third] = BATCHES;
  await writeBatches(path, [first, second, second, third], [0, 1, 1, 2]);
  const { integrity, events } = await readTrace(path);
  expect(integrity.faults).toEqual(['batch 1 came twice or out of order and was left out']);
  expect(events.length).toBe(5);
});

test('a batch or a footer that does not read is a fault, not an exception', async () => {
  const file = await wholeFile();
  const noDeflate = await reading(withRecord(file, 2, Buffer.from('no deflate stream')));
  expect(noDeflate.integrity.faults[0]).toMatch(/^a batch does not inflate: /);
  const noBatch = await reading(withRecord(file, 2, deflateRawSync(pack({ a: 1 }))));
  expect(noBatch.integrity.faults[0]).toBe('not a batch of [version, run, sequence, events]');
  const noFooter = await reading(withRecord(file, 4, pack({ status: 'splendid' })));
  expect(noFooter.integrity.faults[0]).toBe('the footer does not read');
  expect(noFooter.events.length).toBe(5);
});

test('a header that does not read names the field and says what to do', async () => {
  const file = withRecord(await wholeFile(), 0, pack({ ...HEADER, world: 0 }));
  await expect(reading(file)).rejects.toThrow(/header that does not read \(world: .*trace the job/);
  const noise = withRecord(await wholeFile(), 0, Buffer.from([0xc1]));
  await expect(reading(noise)).rejects.toThrow(/header that does not read .*; trace the job again/);
});

test('a file that begins with another record has no header', async () => {
  const file = await wholeFile();
  const [header, first] = recordOffsets(file);
  expect(file[header]).toBe(RecordKind.header);
  const headless = Buffer.concat([file.subarray(0, PREAMBLE_BYTES), file.subarray(first)]);
  await expect(reading(headless)).rejects.toThrow('has no readable header; trace the job again');
});

test('a record of a kind that is not known is passed over', async () => {
  const file = await wholeFile();
  const later = Buffer.from(file);
  later[recordOffsets(file)[1]] = 200;
  const { integrity } = await reading(later);
  expect(integrity.faults[0]).toBe('batch 0 is missing');
});

test('the header alone is read without the events', async () => {
  const file = await wholeFile();
  const path = newPath();
  writeFileSync(path, file.subarray(0, recordOffsets(file)[1]));
  expect(await readTraceHeader(path)).toEqual(HEADER);
});
