// Histories of the real CUDACachingAllocator (torch 2.14.1 over the fake CUDA of tests/oracle): every counter that the reader gives is
// compared with torch.cuda.memory_stats() at the same entry. MEMTRACKER_PYTHON names a Python with that torch.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { readMeasuredRun } from '../../src/measured/formats.ts';
import { HistoryCursor } from '../../src/measured/history/history_cursor.ts';
import { peakBounds } from '../../src/measured/measured_run.ts';
import { pythonOfJudge, whyNoJudge } from '../oracle/judge.ts';

const PROFILES = [
  'from_start',
  'fixed',
  'expandable',
  'split',
  'roundup',
  'streams',
  'pools',
  'out_of_memory',
];
const SEEDS = [1];

const reason = whyNoJudge();
if (reason !== null) {
  console.warn(`\nSKIPPED: histories are not compared with the real allocator: ${reason}\n`);
}

type Counters = readonly [
  entries: number,
  requested: number,
  allocated: number,
  active: number,
  reserved: number,
];

describe.skipIf(reason !== null)('the counters of torch 2.14.1 are met at every call', () => {
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-history-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  test.each(PROFILES)('%s', async (profile) => {
    for (const seed of SEEDS) {
      const out = join(folder, `${profile}-${seed}`);
      const done = spawnSync(
        pythonOfJudge(),
        [join(import.meta.dirname, 'record_history.py'), out, `${seed}`, profile],
        { encoding: 'utf8' },
      );
      expect(done.stderr).toBe('');
      const run = await readMeasuredRun(`${out}.pickle`);
      const { history } = run;
      const counters = JSON.parse(readFileSync(`${out}.json`, 'utf8')) as Counters[];
      const cursor = new HistoryCursor(history);
      history.baselineBlocks.forEach((_, index) => {
        cursor.addBaseline(index);
      });
      const peak = { allocated: 0, active: 0 };
      for (const [entries, requested, allocated, active, reserved] of counters) {
        cursor.moveTo(entries);
        expect([cursor.requested, cursor.reserved]).toEqual([requested, reserved]);
        expect(cursor.allocatedLow).toBeLessThanOrEqual(allocated);
        expect(cursor.allocatedHigh).toBeGreaterThanOrEqual(allocated);
        expect(cursor.activeLow).toBeLessThanOrEqual(active);
        expect(cursor.activeHigh).toBeGreaterThanOrEqual(active);
        peak.allocated = Math.max(peak.allocated, allocated);
        peak.active = Math.max(peak.active, active);
      }
      const bounds = peakBounds(history);
      expect(bounds.allocated.low).toBeLessThanOrEqual(peak.allocated);
      expect(bounds.allocated.high).toBeGreaterThanOrEqual(peak.allocated);
      if (profile === 'from_start') {
        // Nothing was there before: every size is known.
        expect(history.boundedBlocks).toBe(0);
        expect(run.timeline.peaks.allocated.bytes).toBe(peak.allocated);
        expect(run.timeline.peaks.active.bytes).toBe(peak.active);
      }
      if (profile === 'out_of_memory') expect(history.outOfMemory.length).toBeGreaterThan(0);
      expect(run.trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
    }
  });
});
