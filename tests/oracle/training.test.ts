// A GPT's training steps in eager PyTorch, over the fake CUDA: ATen's own allocations on the real allocator, then the same
// allocations on the model. No GPU; the figures are PyTorch's.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { configOfSnapshot } from '../../src/measured/history/history.ts';
import { openMeasuredInput } from '../../src/measured/input.ts';
import { readSnapshot } from '../../src/measured/snapshot/snapshot_reader.ts';
import { pythonOfJudge, whyNoJudge } from './judge.ts';
import { emptyBaseline, replaySnapshot } from './snapshot_replay.ts';

const reason = whyNoJudge();
if (reason !== null) console.warn(`\nSKIPPED: no training on the real allocator: ${reason}\n`);

describe.skipIf(reason !== null)('training steps in eager PyTorch', () => {
  const folder = mkdtempSync(join(tmpdir(), 'memtracker-training-'));
  afterAll(() => rmSync(folder, { recursive: true }));

  test.each(['', 'expandable_segments:True'])(
    'conf "%s": every placement',
    async (conf) => {
      const file = join(folder, 'snapshot.pickle');
      const script = join(import.meta.dirname, 'training_step.py');
      const done = spawnSync(
        pythonOfJudge(),
        ['-W', 'ignore', script, file, '--conf', conf, '--layers', '4'],
        { encoding: 'utf8' },
      );
      expect(done.status, done.stderr).toBe(0);
      const said = JSON.parse(done.stdout) as {
        readonly peak_allocated: number;
        readonly peak_reserved: number;
        readonly reserved: number;
      };
      const snapshot = await readSnapshot(await openMeasuredInput(file));
      const baseline = emptyBaseline(configOfSnapshot(snapshot.allocatorSettings));
      const { gpu, model, peakAllocated } = replaySnapshot(snapshot, 0, baseline);
      expect(gpu.placements.length).toBeGreaterThan(1000);
      expect(model).toEqual(gpu);
      expect(model.peakReserved).toBe(said.peak_reserved);
      expect(model.finalReserved).toBe(said.reserved);
      expect(peakAllocated).toBe(said.peak_allocated);
    },
    120_000,
  );
});
