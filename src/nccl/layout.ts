// One communicator seen from one of its ranks: who shares its NVLink domain, and whom its rings and trees connect it to.
//
// NCCL finds the order of the GPUs inside a node by a search. What the search of NCCL 2.27.5 gives is written down here for GPUs
// behind a switch, each with a network card of its own (rails): the chain of a channel starts at the GPU next to its card; rings
// run downward from there, trees upward. A different order changes which rank pays, not what a channel costs.

/** Peers of one channel. Indices are positions in the communicator. */
export interface TreePeers {
  readonly up: number | undefined;
  readonly down: readonly number[];
}

export interface RingPeers {
  readonly previous: number;
  readonly next: number;
}

export interface GroupLayout {
  /** Ranks of the communicator. */
  readonly size: number;
  /** Position of the rank that is looked at. */
  readonly self: number;
  /** Positions by domain, in order; every domain has at least one. */
  readonly domains: readonly (readonly number[])[];
  readonly selfDomain: number;
  /** Index of `self` inside its domain. */
  readonly selfLocal: number;
  /** Fewest ranks in any domain. */
  readonly ranksPerDomain: number;
}

/** @param domainOfPosition the NVLink domain (any number) of each rank of the communicator, in order. */
export function groupLayout(domainOfPosition: readonly number[], self: number): GroupLayout {
  const domains = new Map<number, number[]>();
  domainOfPosition.forEach((domain, position) => {
    const members = domains.get(domain);
    if (members) members.push(position);
    else domains.set(domain, [position]);
  });
  const lists = [...domains.values()];
  const selfDomain = lists.findIndex((members) => members.includes(self));
  return {
    size: domainOfPosition.length,
    self,
    domains: lists,
    selfDomain,
    selfLocal: lists[selfDomain].indexOf(self),
    ranksPerDomain: Math.min(...lists.map((members) => members.length)),
  };
}

/** Every member once, from the one with index `head` on, upward (step 1) or downward (step -1). */
function chainFrom(members: readonly number[], head: number, step: 1 | -1): number[] {
  const size = members.length;
  return members.map((_, i) => members[(head + i * (step + size)) % size]);
}

/** Which rings a communicator has. */
export interface RingShape {
  /** Number of different rings; channels beyond it repeat them. */
  readonly search: number;
  /** Even rings enter on card c and leave on card c + 1, odd ones the other way round. */
  readonly alternatesRails: boolean;
}

/**
 * Neighbours in the ring of a channel (src/graph/connect.cc: connectRings, ncclTopoPostset, copyChannels).
 */
export function ringPeers(layout: GroupLayout, channel: number, shape: RingShape): RingPeers {
  const { domains, self, size } = layout;
  if (domains.length === 1) {
    return { previous: (self + size - 1) % size, next: (self + 1) % size };
  }
  const search = channel % shape.search;
  const alternates = shape.alternatesRails && shape.search % 2 === 0;
  const chainOf = (domain: number) => {
    const members = domains[domain];
    // ncclTopoPostset swaps neighbouring rings on odd nodes, so that a ring stays on its rails.
    const ring = alternates && domain % 2 === 1 ? search ^ 1 : search;
    return chainFrom(members, ring % members.length, alternates && ring % 2 === 1 ? 1 : -1);
  };
  const chain = chainOf(layout.selfDomain);
  const at = chain.indexOf(self);
  const count = domains.length;
  const before = chainOf((layout.selfDomain + count - 1) % count);
  const after = chainOf((layout.selfDomain + 1) % count);
  return {
    previous: at > 0 ? chain[at - 1] : before[before.length - 1],
    next: at < chain.length - 1 ? chain[at + 1] : after[0],
  };
}

/** Parent and children of a node in one of the two trees of a double binary tree. */
export interface TreeNode {
  readonly parent: number | undefined;
  /** Whether the node is the first (0) or the second (1) child of its parent. */
  readonly childKind: 0 | 1;
  readonly children: readonly [number | undefined, number | undefined];
}

/** src/graph/trees.cc, ncclGetBtree: leaves at odd ranks, root 0. */
export function binaryTree(size: number, rank: number): TreeNode {
  let bit = 1;
  while (bit < size && (bit & rank) === 0) bit <<= 1;
  if (rank === 0) {
    return {
      parent: undefined,
      childKind: 0,
      children: [undefined, size > 1 ? bit >> 1 : undefined],
    };
  }
  let parent = (rank ^ bit) | (bit << 1);
  if (parent >= size) parent = rank ^ bit;
  let low = bit >> 1;
  if (low === 0) {
    return { parent, childKind: rank < parent ? 0 : 1, children: [undefined, undefined] };
  }
  const first = rank - low;
  let second = rank + low;
  while (second >= size && low > 0) {
    low >>= 1;
    second = rank + low;
  }
  return {
    parent,
    childKind: rank < parent ? 0 : 1,
    children: [first, low === 0 || second >= size ? undefined : second],
  };
}

/** src/graph/trees.cc, ncclGetDtree: the second tree is the first one mirrored (even size) or shifted (odd size). */
export function doubleBinaryTree(size: number, rank: number): readonly [TreeNode, TreeNode] {
  const first = binaryTree(size, rank);
  const there = size % 2 === 1 ? (rank + size - 1) % size : size - 1 - rank;
  const back = (node: number | undefined) =>
    node === undefined ? undefined : size % 2 === 1 ? (node + 1) % size : size - 1 - node;
  const mirrored = binaryTree(size, there);
  return [
    first,
    {
      parent: back(mirrored.parent),
      childKind: mirrored.childKind,
      children: [back(mirrored.children[0]), back(mirrored.children[1])],
    },
  ];
}

/**
 * Neighbours in the tree of a channel: a chain inside each domain, double binary trees between the chains
 * (src/graph/connect.cc, connectTrees). The first `searchChannels` channels use one tree, the next as many the other; further
 * ones repeat these.
 * @param balanced the first child of a node hangs on the second GPU of its chain instead of on the first (pattern
 *   BALANCED_TREE; what the search finds on compute capability 8, where newer GPUs get the pattern TREE).
 */
export function treePeers(
  layout: GroupLayout,
  channel: number,
  searchChannels: number,
  balanced: boolean,
): TreePeers {
  const { domains, self } = layout;
  const search = channel % searchChannels;
  const single = domains.length === 1;
  const chainOf = (domain: number) => {
    const members = domains[domain];
    return chainFrom(members, single ? 0 : search % members.length, 1);
  };
  const chain = chainOf(layout.selfDomain);
  const at = chain.indexOf(self);
  const down: number[] = at < chain.length - 1 ? [chain[at + 1]] : [];
  let up = at > 0 ? chain[at - 1] : undefined;
  if (single) return { up, down };

  const which = Math.floor(channel / searchChannels) % 2;
  const node = doubleBinaryTree(domains.length, layout.selfDomain)[which];
  const holder = (domain: number, kind: 0 | 1) => {
    const there = chainOf(domain);
    return balanced && kind === 0 ? there[1 % there.length] : there[0];
  };
  if (at === 0 && node.parent !== undefined) up = holder(node.parent, node.childKind);
  for (const kind of [0, 1] as const) {
    const child = node.children[kind];
    if (child !== undefined && holder(layout.selfDomain, kind) === self) {
      down.push(chainOf(child)[0]);
    }
  }
  return { up, down };
}

/**
 * Network neighbours of a rank in the NVLS tree of a channel: the ranks with the same place in the neighbouring domains
 * (src/graph/connect.cc, connectNvls). Empty inside one domain, and for a rank that is no head.
 */
export function nvlsTreePeers(layout: GroupLayout, channel: number, heads: number): number[] {
  const { domains, selfDomain, selfLocal } = layout;
  if (domains.length === 1 || selfLocal >= heads) return [];
  const node = doubleBinaryTree(domains.length, selfDomain)[channel % 2];
  return [node.parent, ...node.children]
    .filter((domain) => domain !== undefined)
    .map((domain) => domains[domain][selfLocal]);
}

/** Peers of the PAT algorithm: powers of two away, both ways (src/transport/generic.cc, ncclTransportPatConnect). */
export function patPeers(layout: GroupLayout): number[] {
  const peers = new Set<number>();
  for (let mask = 1; mask < layout.size; mask <<= 1) {
    peers.add((layout.self + mask) % layout.size);
    peers.add((layout.self + layout.size - mask) % layout.size);
  }
  return [...peers];
}
