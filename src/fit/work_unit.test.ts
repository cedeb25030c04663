import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { packageFolder } from '../sidecar/package_folder.ts';
import { specSchema } from './spec.ts';
import { baseVariation, type Variation } from './variation.ts';
import { UnitKeys, unitOf } from './work_unit.ts';

const folder = mkdtempSync(join(tmpdir(), 'memtracker-unit-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function variationOf(changes: Partial<Variation> = {}): Variation {
  const spec = specSchema.parse({ framework: 'script', arguments: 'train.py', world: 8 });
  return { ...baseVariation(spec, folder), ...changes };
}

/** A fresh reader each time: folders are read once by each. */
const keyOf = (variation: Variation, rank = 0, env = {}, versions = '1') =>
  new UnitKeys(packageFolder('.'), versions).key(unitOf(variation, rank), env);

test.each([
  ['a relative', 'train.py'],
  ['an absolute', join(folder, 'train.py')],
])('a change of the script changes the key of %s path', async (_which, script) => {
  writeFileSync(join(folder, 'train.py'), 'print(1)\n');
  const before = await keyOf(variationOf({ argv: [script] }));
  expect(await keyOf(variationOf({ argv: [script] }))).toBe(before);
  writeFileSync(join(folder, 'train.py'), 'print(2)\n');
  expect(await keyOf(variationOf({ argv: [script] }))).not.toBe(before);
  writeFileSync(join(folder, 'imported.py'), 'x = 1\n');
  const beside = await keyOf(variationOf({ argv: [script] }));
  writeFileSync(join(folder, 'imported.py'), 'x = 2\n');
  expect(await keyOf(variationOf({ argv: [script] }))).not.toBe(beside);
});

test('what a replay answers does not ask for another trace', async () => {
  const key = await keyOf(variationOf());
  const replays: Partial<Variation>[] = [
    { gpu: 'h200-141gb' },
    { gpu: '40GiB' },
    { allocator: 'expandable_segments:True' },
    { margin: { bytes: 1 } },
    { nccl: { version: '2.27.5' } },
  ];
  for (const change of replays) {
    expect(await keyOf(variationOf(change)), JSON.stringify(change)).toBe(key);
  }
});

test('what changes the run asks for another trace', async () => {
  const key = await keyOf(variationOf());
  const runs: Partial<Variation>[] = [
    { argv: ['train.py', '--lr', '1'] },
    { world: { ranks: 16, gpusPerNode: 8 } },
    { steps: 3 },
    { gpu: 'a100-80gb' },
    { environment: { NCCL_BUFFSIZE: '1048576' } },
    { environment: { MODEL_WIDTH: '4096' } },
  ];
  for (const change of runs) {
    expect(await keyOf(variationOf(change)), JSON.stringify(change)).not.toBe(key);
  }
  expect(await keyOf(variationOf(), 1)).not.toBe(key);
  expect(await keyOf(variationOf(), 0, {}, '2')).not.toBe(key);
  // A trace does not show paths; its key tells them apart all the same.
  const files = ['/a', '/b'].map((NCCL_TOPO_FILE) => keyOf(variationOf(), 0, { NCCL_TOPO_FILE }));
  expect(await files[0]).not.toBe(await files[1]);
  // Nothing that a job allocates depends on it.
  expect(await keyOf(variationOf(), 0, { EDITOR: 'vi' })).toBe(key);
});
