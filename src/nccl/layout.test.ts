import { expect, test } from 'vitest';
import { binaryTree, doubleBinaryTree, groupLayout, ringPeers, treePeers } from './layout.ts';

test('the binary tree is the one drawn in src/graph/trees.cc for 14 ranks', () => {
  const parents = Array.from({ length: 14 }, (_, rank) => binaryTree(14, rank).parent);
  expect(parents).toEqual([undefined, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]);
});

test('the second tree is mirrored for an even and shifted for an odd number of ranks', () => {
  // Also drawn there: 12 ranks have root 11 in the mirror, 13 ranks root 1 in the shift.
  const root = (size: number) =>
    Array.from({ length: size }, (_, rank) => rank).filter(
      (rank) => doubleBinaryTree(size, rank)[1].parent === undefined,
    );
  expect(root(12)).toEqual([11]);
  expect(root(13)).toEqual([1]);
});

test('parents and children agree, whatever the size', () => {
  for (let size = 1; size <= 40; size++) {
    for (const tree of [0, 1] as const) {
      for (let rank = 0; rank < size; rank++) {
        for (const child of doubleBinaryTree(size, rank)[tree].children) {
          if (child !== undefined) expect(doubleBinaryTree(size, child)[tree].parent).toBe(rank);
        }
      }
    }
  }
});

const nodes = (count: number, local: number) =>
  Array.from({ length: count * local }, (_, rank) => Math.floor(rank / local));

test('a ring visits every rank once and its neighbours agree, on every shape', () => {
  for (const [count, local] of [
    [1, 8],
    [2, 8],
    [3, 8],
    [4, 4],
    [4, 1],
    [2, 3],
    [5, 2],
  ]) {
    const domains = nodes(count, local);
    const search = count === 1 ? 12 : local;
    for (let channel = 0; channel < 4 * search; channel++) {
      const alternatesRails = channel >= 2 * search;
      const peers = domains.map((_, self) =>
        ringPeers(groupLayout(domains, self), channel, { search, alternatesRails }),
      );
      let at = 0;
      const seen = new Set<number>();
      while (!seen.has(at)) {
        seen.add(at);
        expect(peers[peers[at].next].previous).toBe(at);
        at = peers[at].next;
      }
      expect(seen.size).toBe(domains.length);
    }
  }
});

test('rings of eight H100 are those that the search of NCCL 2.27.5 prints', () => {
  // Its graph for eight GPUs with a card each: 0 7 6 5 4 3 2 1 from card 0 to card 1, 1 2 3 4 5 6 7 0 from 1 to 0, and so on.
  const domains = nodes(2, 8);
  const path = (channel: number, first: number) => {
    const ranks = [first];
    while (ranks.length < 8) {
      const layout = groupLayout(domains, ranks[ranks.length - 1]);
      ranks.push(ringPeers(layout, channel, { search: 8, alternatesRails: true }).next);
    }
    return ranks.join(' ');
  };
  expect(path(0, 0)).toBe('0 7 6 5 4 3 2 1');
  expect(path(1, 1)).toBe('1 2 3 4 5 6 7 0');
  expect(path(6, 6)).toBe('6 5 4 3 2 1 0 7');
});

test('alternating rings between an even number of nodes never cross rails', () => {
  const domains = nodes(4, 8);
  for (let channel = 0; channel < 16; channel++) {
    for (let self = 0; self < domains.length; self++) {
      const layout = groupLayout(domains, self);
      const { next } = ringPeers(layout, channel, { search: 8, alternatesRails: true });
      if (domains[next] !== domains[self]) expect(next % 8).toBe(self % 8);
    }
  }
});

test('a tree has one root, and parents and children agree, on every shape', () => {
  for (const [count, local] of [
    [1, 8],
    [2, 8],
    [3, 8],
    [4, 4],
    [4, 1],
    [7, 2],
  ]) {
    const domains = nodes(count, local);
    const search = count === 1 ? 12 : local;
    for (let channel = 0; channel < 4 * search; channel++) {
      const balanced = channel >= 2 * search;
      const peers = domains.map((_, self) =>
        treePeers(groupLayout(domains, self), channel, search, balanced),
      );
      expect(peers.filter(({ up }) => up === undefined)).toHaveLength(1);
      peers.forEach(({ up, down }, self) => {
        if (up !== undefined) expect(peers[up].down).toContain(self);
        for (const child of down) expect(peers[child].up).toBe(self);
      });
    }
  }
});
