import { expect, test } from 'vitest';
import { chosenRoles, layoutOf, rolesOf } from './roles.ts';

test('a pipeline of four stages has four roles whatever the number of ranks', () => {
  const layout = layoutOf(
    { dims: ['pp', 'dp', 'tp'], sizes: [4, 512, 8], differing: ['pp'] },
    16384,
  );
  expect(layout).toBeDefined();
  expect(rolesOf(layout!)).toEqual([
    { label: 'pp=0', representative: 0, ranks: 4096, stage: 0 },
    { label: 'pp=1', representative: 4096, ranks: 4096, stage: 1 },
    { label: 'pp=2', representative: 8192, ranks: 4096, stage: 2 },
    { label: 'pp=3', representative: 12288, ranks: 4096, stage: 3 },
  ]);
});

test('uneven shards are looked at from both ends', () => {
  const layout = layoutOf({ dims: ['dp_shard', 'tp'], sizes: [6, 2], uneven: ['dp_shard'] }, 12);
  expect(rolesOf(layout!).map((role) => [role.label, role.representative, role.ranks])).toEqual([
    ['dp_shard=first', 0, 10],
    ['dp_shard=last', 10, 2],
  ]);
});

test('a layout that does not make up the world is not used', () => {
  expect(layoutOf({ dims: ['pp'], sizes: [4] }, 8)).toBeUndefined();
  expect(layoutOf(undefined, 8)).toBeUndefined();
});

test('a rank outside the world is refused', () => {
  expect(() => chosenRoles([0, 8], undefined, 8)).toThrow('rank 8 is not in a world of 8 (0 to 7)');
});
