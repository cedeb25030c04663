import { expect, test } from 'vitest';
import { specSchema } from './spec.ts';
import { candidates } from './suggestions.ts';
import { baseVariation, vary } from './variation.ts';

test.each([
  // Two nodes of a GB200 system, four GPUs each, become four of them.
  [{ nodes: 2, gpus_per_node: 4 }, 'twice the nodes', { ranks: 16, gpusPerNode: 4 }],
  [16, 'twice the nodes', { ranks: 32, gpusPerNode: 8 }],
  [4, 'twice the GPUs', { ranks: 8, gpusPerNode: 8 }],
])('more GPUs for a world of %j: %s', (world, title, doubled) => {
  const base = baseVariation(specSchema.parse({ framework: 'script', world }), '/job');
  const more = candidates(base, [], undefined).find((candidate) => candidate.title === title);
  const changed = Object.entries(more?.change ?? {}).reduce(
    (variation, [key, value]) => vary(variation, key, value),
    base,
  );
  expect(changed.world).toEqual(doubled);
});
