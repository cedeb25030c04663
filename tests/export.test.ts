// What other tools make of the exports: torch's own snapshot viewer, our snapshot reader, the documented formats.

import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { analyzeTrace } from '../src/attribution/analysis.ts';
import { formatBytes, MiB } from '../src/base/bytes.ts';
import { analyzeFile } from '../src/measured/analysis.ts';
import { CSV_TABLES } from '../src/report/formats/format.ts';
import { EXPORT_FORMATS } from '../src/report/formats/formats.ts';
import { MEMORY_KINDS } from '../src/timeline/timeline.ts';
import { syntheticTrace } from './traces/synthetic.ts';

const folder = mkdtempSync(join(tmpdir(), 'memtracker-export-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const analysis = analyzeTrace(syntheticTrace());
const [device] = analysis.devices;
const { timeline } = device;

function exported(name: string, table: (typeof CSV_TABLES)[number] = 'tensors'): Buffer {
  const format = EXPORT_FORMATS.find((candidate) => candidate.name === name);
  if (format === undefined) throw new Error(`no format ${name}`);
  const parts = [...format.write(analysis, device, { at: 'allocated', table })];
  return Buffer.concat(parts.map((part) => Buffer.from(part as Uint8Array)));
}

function snapshotFile(): string {
  const path = join(folder, 'snapshot.pickle');
  writeFileSync(path, exported('memory_viz'));
  return path;
}

/** A Python with the pinned torch. */
function pythonWithTorch(): string | undefined {
  const candidates = [process.env.MEMTRACKER_PYTHON].filter((path) => path !== undefined);
  return candidates.find((python) => {
    if (!existsSync(python)) return false;
    try {
      execFileSync(python, ['-c', 'import torch.cuda._memory_viz'], { stdio: 'ignore' });
      return true;
    } catch {
      return false;
    }
  });
}

const python = pythonWithTorch();
if (python === undefined) {
  console.warn('SKIPPED: the check by torch itself; set MEMTRACKER_PYTHON to a Python with torch');
}

test.skipIf(python === undefined)(
  "torch's own _memory_viz reads the pickle and adds up to our figures",
  () => {
    const script = `
import json, pickle, re, sys
from torch.cuda import _memory_viz as viz
data = pickle.load(open(sys.argv[1], 'rb'))
summary, trace = viz.segsum(data), viz.trace(data)
live = peak = 0
for entry in data['device_traces'][0]:
    live += {'alloc': entry['size'], 'free_completed': -entry['size']}.get(entry['action'], 0)
    peak = max(peak, live)
print(json.dumps({
    'reserved': sum(s['total_size'] for s in data['segments']),
    'allocated': sum(s['allocated_size'] for s in data['segments']),
    'requested': sum(b['requested_size'] for s in data['segments'] for b in s['blocks'] if b['state'] == 'active_allocated'),
    'peak': peak,
    'summary': re.search(r'total_reserved: (\\S+)', summary)[1],
    'entries': int(re.search(r'(\\d+) entries', trace)[1]),
    'predicted': 'predicted' in data['allocator_settings']['memtracker'],
    'top_frame': data['device_traces'][0][-1]['frames'][:1],
}))`;
    const said = execFileSync(python as string, ['-c', script, snapshotFile()], {
      encoding: 'utf8',
    });
    const figures = JSON.parse(said.trim().split('\n').at(-1) as string);
    expect(figures).toMatchObject({
      reserved: timeline.final.reserved,
      allocated: timeline.final.allocated,
      requested: timeline.final.requested,
      peak: timeline.peaks.requested.bytes,
      summary: `${(timeline.final.reserved / MiB).toFixed(1)}MiB`,
      predicted: true,
    });
    expect(figures.entries).toBeGreaterThan(timeline.phases.length);
  },
);

test('read back as a snapshot it has the same peaks, phase by phase, to the byte', async () => {
  const back = await analyzeFile(snapshotFile());
  const measured = back.devices[0].timeline;
  for (const kind of ['requested', 'allocated', 'active', 'reserved'] as const) {
    expect(measured.peaks[kind].bytes, kind).toBe(timeline.peaks[kind].bytes);
    expect(measured.final[kind], kind).toBe(timeline.final[kind]);
  }
  const peaks = (phases: typeof timeline.phases) =>
    phases.map((span) => [span.peaks.allocated.bytes, span.peaks.reserved.bytes]);
  expect(peaks(measured.phases)).toEqual(peaks(timeline.phases));
});

test('the pickle has only opcodes that the page of PyTorch reads, and no frame of protocol 5', () => {
  const bytes = exported('memory_viz');
  expect([bytes[0], bytes[1], bytes.at(-1)]).toEqual([0x80, 4, 0x2e]);
});

test('perfetto: slices nest, counters reach the exact peaks', () => {
  const { traceEvents, otherData } = JSON.parse(exported('perfetto').toString());
  expect(otherData.predicted).toBe(true);
  let depth = 0;
  for (const { ph } of traceEvents) {
    if (ph === 'B') depth++;
    if (ph === 'E') depth--;
    expect(depth).toBeGreaterThanOrEqual(0);
  }
  expect(depth).toBe(0);
  const counters = traceEvents.filter(({ ph }: { ph: string }) => ph === 'C');
  for (const kind of ['requested', 'allocated', 'active', 'reserved'] as const) {
    const highest = Math.max(
      ...counters.map(({ args }: { args: Record<string, number> }) => args[kind]),
    );
    expect(highest).toBe(timeline.peaks[kind].bytes);
  }
  const times = counters.map(({ ts }: { ts: number }) => ts);
  expect(times).toEqual([...times].sort((a: number, b: number) => a - b));
});

test('speedscope: the weights of each profile add up to the peak', () => {
  const file = JSON.parse(exported('speedscope').toString());
  for (const profile of file.profiles) {
    expect(profile.unit).toBe('bytes');
    expect(profile.weights.reduce((sum: number, weight: number) => sum + weight, 0)).toBe(
      timeline.peaks.allocated.bytes,
    );
    for (const sample of profile.samples) {
      for (const frame of sample) expect(file.shared.frames[frame]).toBeDefined();
    }
  }
  expect(file.shared.frames).toContainEqual({ name: 'forward', file: 'model.py', line: 160 });
});

test('csv: every table has its head in every row, and sums that are ours', () => {
  for (const table of CSV_TABLES) {
    const [head, ...rows] = exported('csv', table).toString().trimEnd().split('\r\n');
    expect(rows.length).toBeGreaterThan(0);
    // No cell of the synthetic job holds a comma but the labels of phases, which are quoted.
    const width = head.split(',').length;
    for (const row of rows) expect(row.replace(/"[^"]*"/g, 'q').split(',')).toHaveLength(width);
  }
  const [head, ...rows] = exported('csv', 'tensors').toString().trimEnd().split('\r\n');
  const column = head.split(',').indexOf('block_bytes');
  const sum = rows.reduce((total, row) => total + Number(row.split(',')[column]), 0);
  expect(formatBytes(sum)).toBe(formatBytes(timeline.peaks.allocated.bytes));
});

test('csv: the timeline has every event and every kind of memory', () => {
  const rows = exported('csv', 'timeline').toString().trimEnd().split('\r\n');
  expect(rows).toHaveLength(timeline.length + 1);
  for (const kind of MEMORY_KINDS.slice(0, 5)) expect(rows[0].split(',')).toContain(kind);
});
