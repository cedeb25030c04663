import { expect, test } from 'vitest';
import { channelCounts } from './channels.ts';
import { readEnvironment } from './environment.ts';
import { groupLayout } from './layout.ts';
import { findRelease } from './release.ts';
import { findTopology, type Topology } from './topology.ts';

function estimate(topology: Topology, domains: readonly number[], version = '2.30.7') {
  const { release } = findRelease(version);
  const environment = readEnvironment({}, release);
  return channelCounts({ release, topology, environment, layout: groupLayout(domains, 0) });
}

const nodes = (count: number, local: number) =>
  Array.from({ length: count * local }, (_, rank) => Math.floor(rank / local));

test("rings between nodes are those that NCCL's own search finds", () => {
  // src/graph/search.cc, topo.cc, paths.cc and xml.cc of the tags, compiled without CUDA and run on the description of a node with 1
  // to 8 of its GPUs in the communicator, each with a card: "nch" of the ring graph.
  const found: [string, string, number[]][] = [
    ['dgx-h100', '2.19.3', [2, 4, 6, 8, 5, 6, 7, 8]],
    ['dgx-h100', '2.27.5', [2, 4, 6, 8, 5, 6, 7, 8]],
    ['dgx-h100', '2.30.7', [2, 4, 6, 8, 5, 6, 7, 8]],
    ['dgx-a100', '2.27.5', [1, 2, 3, 4, 5, 6, 7, 8]],
    ['dgx-a100', '2.30.7', [1, 2, 3, 4, 5, 6, 7, 8]],
    ['hgx-b200', '2.30.7', [2, 4, 6, 8, 5, 6, 7, 8]],
    ['hgx-b300', '2.27.5', [4, 8, 6, 8, 10, 12, 14, 16]],
    ['hgx-b300', '2.28.9', [2, 4, 6, 8, 10, 12, 14, 16]],
    ['hgx-b300', '2.30.7', [2, 4, 6, 8, 10, 12, 14, 16]],
  ];
  for (const [name, version, counts] of found) {
    const topology = findTopology(name);
    const rings = counts.map((_, i) => estimate(topology, nodes(2, i + 1), version).likely.search);
    expect(rings, `${name} ${version}`).toEqual(counts);
  }
});

test('rings alternate rails only where NVLink could not carry them otherwise', () => {
  // crossNic 2 in the same search: eight H100 with 400 Gb/s cards, eight B300 with 800.
  const alternates = (name: string, local: number, version = '2.30.7') =>
    estimate(findTopology(name), nodes(2, local), version).likely.alternatesRails;
  expect(alternates('dgx-h100', 8)).toBe(true);
  expect(alternates('dgx-h100', 8, '2.19.3')).toBe(false);
  expect(alternates('hgx-b300', 8)).toBe(true);
  for (const [name, local] of [
    ['dgx-h100', 7],
    ['hgx-b200', 8],
    ['dgx-a100', 8],
  ] as const) {
    expect(alternates(name, local), `${name} ${local}`).toBe(false);
  }
});

test('channels in published logs of p5.48xlarge', () => {
  // "24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer" on one node, 16, 16, 16 and 2 on two.
  const h100 = findTopology('dgx-h100');
  const counts = (count: number, version: string) => {
    const { ring, nvls, p2p, p2pPerPeer } = estimate(h100, nodes(count, 8), version).likely;
    return [ring, nvls, p2p, p2pPerPeer];
  };
  expect(counts(1, '2.27.5')).toEqual([24, 16, 32, 32]);
  expect(counts(2, '2.27.5')).toEqual([16, 16, 16, 2]);
});

test('few fast rings between nodes are doubled once more', () => {
  // ncclTopoPostset: five rings of 48 GB/s become ten channels, then twenty.
  expect(estimate(findTopology('dgx-h100'), nodes(2, 5)).likely.ring).toBe(20);
  expect(estimate(findTopology('dgx-a100'), nodes(2, 5)).likely.ring).toBe(10);
});

test('what was not looked at is a band', () => {
  const { low, high, evidence } = estimate(findTopology('l40s-pcie'), nodes(1, 8));
  expect(evidence).toBe('assumed');
  expect(low.ring).toBeLessThan(high.ring);
});
