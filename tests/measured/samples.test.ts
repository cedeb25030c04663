// Snapshots of real GPUs (torch 2.4, 2.6, 2.11 and a nightly of 2026), when they are there. They belong to others and are not part of
// this repository: MEMTRACKER_SHARED names the folder that holds truth/snapshots.

import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { attributionAt } from '../../src/attribution/attribution.ts';
import { readMeasuredRun } from '../../src/measured/formats.ts';
import { HistoryCursor } from '../../src/measured/history/history_cursor.ts';
import { openMeasuredInput } from '../../src/measured/input.ts';
import { readSnapshot } from '../../src/measured/snapshot/snapshot_reader.ts';

const shared = process.env.MEMTRACKER_SHARED ?? resolve(import.meta.dirname, '../../../shared');
const folder = join(shared, 'truth', 'snapshots');
const missing = !existsSync(folder);
if (missing) console.warn(`\nSKIPPED: no real snapshots in ${folder} (set MEMTRACKER_SHARED)\n`);

const WHOLE = [
  'mlsys_profile_grad.pkl',
  'mlsys_profile_no_grad.pkl',
  'kkaitlyn_memory_files_memory_ctx128_forward.pickle',
  'kkaitlyn_memory_files_memory_ctx256_forward_mixed.pickle',
  'wedsonlin_medium_128_inference_memory_snapshot.pickle',
  'wedsonlin_medium_512_inference_memory_snapshot.pickle',
];

describe.skipIf(missing)('real snapshots', () => {
  test.each(WHOLE)('%s: the history ends in the counters of its own segments', async (name) => {
    const { history, timeline, trace } = await readMeasuredRun(join(folder, name));
    // What the GPU's allocator said of itself when the snapshot was dumped.
    const said = { reserved: 0, allocated: 0, active: 0, requested: 0 };
    for (const segment of history.snapshot.segments) {
      said.reserved += segment.totalSize;
      said.allocated += segment.allocatedSize;
      said.active += segment.activeSize;
      said.requested += segment.requestedSize;
    }
    const cursor = new HistoryCursor(history);
    history.baselineBlocks.forEach((_, index) => {
      cursor.addBaseline(index);
    });
    cursor.moveTo(history.count);
    expect(cursor).toMatchObject({
      reserved: said.reserved,
      allocatedLow: said.allocated,
      allocatedHigh: said.allocated,
      activeLow: said.active,
      activeHigh: said.active,
      requested: said.requested,
    });
    expect(timeline.final).toMatchObject(said);
    expect(history.boundedBlocks).toBe(0);
    expect(trace.integrity.complete).toBe(true);
    const attribution = attributionAt(timeline, timeline.peaks.allocated.event);
    expect(attribution.rest).toBe(0);
    expect(attribution.allocated).toBe(timeline.peaks.allocated.bytes);
  });

  test('a gzip of a snapshot is the same run, whatever it is called', async () => {
    const plain = join(folder, 'mlsys_profile_grad.pkl');
    const packed = join(mkdtempSync(join(tmpdir(), 'memtracker-gzip-')), 'run.json');
    writeFileSync(packed, gzipSync(readFileSync(plain)));
    const [a, b] = [await readMeasuredRun(plain), await readMeasuredRun(packed)];
    expect(b.timeline.peaks).toEqual(a.timeline.peaks);
    expect(b.timeline.final).toEqual(a.timeline.final);
  });

  test('a history of which somebody kept the first 50 entries gives no peak', async () => {
    const path = join(folder, 'nuggets_mini_snapshot.pickle');
    await expect(readMeasuredRun(path)).rejects.toMatchObject({ code: 'HISTORY_CONTRADICTION' });
    const snapshot = await readSnapshot(await openMeasuredInput(path));
    expect(snapshot.entries.length).toBe(50);
    expect(snapshot.segments).toHaveLength(14);
  });

  test('a synthetic snapshot with frees that nobody requested gives no peak', async () => {
    const path = join(folder, 'mosaic_output.pickle');
    await expect(readMeasuredRun(path)).rejects.toThrow('was never requested');
    const snapshot = await readSnapshot(await openMeasuredInput(path));
    expect(snapshot.annotations).toHaveLength(6);
    expect(snapshot.entries.length).toBe(1040);
  });
});
