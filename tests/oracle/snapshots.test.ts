// Snapshots of real GPUs (torch 2.4, 2.6, 2.11, a nightly of 2026): the model asks the driver for the same segments in the same
// order. The files belong to others and are not part of this repository: MEMTRACKER_SHARED names the folder with truth/snapshots.

import { existsSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, expect, test } from 'vitest';
import { configOfSnapshot, readHistory } from '../../src/measured/history/history.ts';
import { openMeasuredInput } from '../../src/measured/input.ts';
import { readSnapshot } from '../../src/measured/snapshot/snapshot_reader.ts';
import { usedDevice } from '../../src/measured/snapshot_run.ts';
import { emptyBaseline, replaySnapshot } from './snapshot_replay.ts';

const shared = process.env.MEMTRACKER_SHARED ?? resolve(import.meta.dirname, '../../../shared');
const folder = join(shared, 'truth', 'snapshots');
const missing = !existsSync(folder);
if (missing) console.warn(`\nSKIPPED: no real snapshots in ${folder} (set MEMTRACKER_SHARED)\n`);

/**
 * `placements`: the model also puts every allocation at the same offset of the same segment. torch 2.6 breaks the tie between
 * free blocks of equal size by address, 2.14 by the age of the segment, so there not every placement is the same.
 */
const SNAPSHOTS = [
  { name: 'mlsys_profile_grad.pkl', startsEmpty: true, placements: true },
  { name: 'mlsys_profile_no_grad.pkl', startsEmpty: true, placements: true },
  // Somebody kept the first 50 entries: the segments in the file are later than they are.
  { name: 'nuggets_mini_snapshot.pickle', startsEmpty: true, placements: true },
  { name: 'kkaitlyn_memory_files_memory_ctx128_forward.pickle', placements: false },
  { name: 'kkaitlyn_memory_files_memory_ctx256_forward_mixed.pickle', placements: false },
  { name: 'wedsonlin_medium_128_inference_memory_snapshot.pickle', placements: true },
  { name: 'wedsonlin_medium_512_inference_memory_snapshot.pickle', placements: true },
];

describe.skipIf(missing)('the snapshot of a real GPU', () => {
  test.each(SNAPSHOTS)('$name: the same segments in the same order', async (file) => {
    const snapshot = await readSnapshot(await openMeasuredInput(join(folder, file.name)));
    const device = usedDevice(snapshot);
    const baseline = file.startsEmpty
      ? emptyBaseline(configOfSnapshot(snapshot.allocatorSettings))
      : readHistory(snapshot, device);
    const { gpu, model } = replaySnapshot(snapshot, device, baseline);
    expect(gpu.placements.length).toBeGreaterThan(0);
    expect(model.segments).toEqual(gpu.segments);
    expect(model.peakReserved).toBe(gpu.peakReserved);
    expect(model.finalReserved).toBe(gpu.finalReserved);
    if (file.placements) expect(model.placements).toEqual(gpu.placements);
    const same = gpu.placements.filter((place, i) => place === model.placements[i]).length;
    console.info(
      `${file.name}: ${gpu.segments.length} segment events, peak reserved ${gpu.peakReserved}, final ${gpu.finalReserved}, ` +
        `${same} of ${gpu.placements.length} placements the same`,
    );
  });
});
