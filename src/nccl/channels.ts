// How many channels a communicator gets. The counts follow src/graph/connect.cc (ncclTopoPostset) and src/graph/paths.cc
// (ncclTopoComputeP2pChannels) from the rings that NCCL's search finds; where the search's result is not known for a shape,
// three estimates are given instead of one.

import type { Evidence } from '../base/evidence.ts';
import type { NcclEnvironment } from './environment.ts';
import type { GroupLayout } from './layout.ts';
import type { NcclRelease } from './release.ts';
import type { Topology } from './topology.ts';

export interface ChannelCounts {
  /** Different rings found by the search, before they are duplicated. */
  readonly search: number;
  /** Rings enter a node on one rail and leave it on the next one, so that no traffic crosses NVLink only to reach its card. */
  readonly alternatesRails: boolean;
  /** Ring and tree channels ("coll channels" in NCCL's log). */
  readonly ring: number;
  /** Point-to-point channels, and those used towards one peer. */
  readonly p2p: number;
  readonly p2pPerPeer: number;
  /** NVLS channels; 0 without NVLS. */
  readonly nvls: number;
  /** GPUs that hold a part of every NVLS buffer. */
  readonly nvlsHeads: number;
  /** Bytes of one step of an NVLS channel. */
  readonly nvlsChunk: number;
}

export interface ChannelEstimate {
  readonly low: ChannelCounts;
  readonly likely: ChannelCounts;
  readonly high: ChannelCounts;
  readonly evidence: Evidence;
  readonly source: string;
}

/** What the channel counts depend on. */
export interface GroupSituation {
  readonly release: NcclRelease;
  readonly topology: Topology;
  readonly environment: NcclEnvironment;
  readonly layout: GroupLayout;
  /** Limits of the communicator's own ncclConfig_t, if any. */
  readonly minCtas?: number | undefined;
  readonly maxCtas?: number | undefined;
}

/** What the search found. */
interface Rings {
  readonly count: number;
  /** GB/s of one ring. */
  readonly speed: number;
  readonly alternatesRails: boolean;
}

interface RingEstimate {
  readonly low: Rings;
  readonly likely: Rings;
  readonly high: Rings;
  readonly evidence: Evidence;
  readonly source: string;
}

function powerOfTwoUp(value: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(1, value)));
}

/** NCCL keeps at most 32 ranks' worth of NVLS buffers (src/include/device.h, NCCL_MAX_NVLS_ARITY). */
const MAX_NVLS_HEADS = 32;
const DEFAULT_NVLS_CHUNK = 128 * 1024;
/** src/include/device.h, NCCL_MAX_DEV_WORK_P2P_PER_BATCH. */
const P2P_PER_BATCH = 8;
/** src/graph/paths.cc, NCCL_P2P_PER_CHANNEL_NET_BW (GB/s). */
const BANDWIDTH_PER_P2P_CHANNEL = 14;
/** GB/s a link, src/graph/topo.h. */
function linkBandwidth(computeCapability: number): number {
  if (computeCapability >= 100) return 40.1;
  return computeCapability >= 90 ? 20.6 : 20;
}

/**
 * Rings between nodes with one network card for each GPU (rails): as many as the cards' bandwidth holds, then duplicated at
 * half the speed where there are few of them (src/graph/search.cc, ncclTopoCompute and ncclTopoDupChannels). The code of
 * NCCL 2.19.3, 2.27.5, 2.28.9 and 2.30.7 was run on 1 to 8 GPUs with cards of 100 to 800 Gb/s, on A100, H100, B200 and B300.
 */
function railRings({ topology, layout, release }: GroupSituation): Rings {
  const { bandwidth } = topology.network;
  const { fastestRing, alternateRails } = release.search;
  let speed = Math.min(bandwidth, fastestRing);
  let count = Math.max(1, Math.floor((layout.ranksPerDomain * bandwidth) / speed));
  const few = !(topology.computeCapability > 80 && speed < 50 && count > 4);
  if (speed >= 25 && few) {
    count *= 2;
    speed /= 2;
  }
  count = Math.min(count, release.maxChannels / 2);
  const { nvlink } = topology;
  const capacity = nvlink ? nvlink.links * linkBandwidth(topology.computeCapability) : 0;
  const crowded = nvlink !== undefined && count * speed > capacity;
  return { count, speed, alternatesRails: alternateRails && crowded };
}

function searchRings(situation: GroupSituation): RingEstimate {
  const { topology, layout, release } = situation;
  const { nvlink, network } = topology;
  const between = (
    low: number,
    likely: number,
    high: number,
    evidence: Evidence,
    source: string,
  ) => {
    const rings = (count: number): Rings => ({ count, speed: 0, alternatesRails: false });
    return { low: rings(low), likely: rings(likely), high: rings(high), evidence, source };
  };
  const exactly = (count: number, source: string) => between(count, count, count, 'source', source);
  if (layout.size === 1) {
    return exactly(
      release.maxChannels / 2,
      'a single rank gets every channel (src/graph/search.cc)',
    );
  }
  if (layout.domains.length === 1) {
    if (nvlink) return exactly(nvlink.ringChannels / 2, topology.source);
    // On PCIe the count depends on switches and sockets: 1 or 2 between two GPUs, seen with different trees of bridges.
    return between(1, 2, 4, 'assumed', topology.source);
  }
  const local = layout.ranksPerDomain;
  const railed = network.cardsPerNode >= topology.gpusPerNode || local === 1;
  if ((nvlink || local === 1) && railed) {
    const rings = railRings(situation);
    const source = 'src/graph/search.cc: one ring for each card, duplicated where they are few';
    if (local <= 8) return { low: rings, likely: rings, high: rings, evidence: 'source', source };
    // Larger NVLink domains were not looked at.
    const fewer = { ...rings, count: Math.max(1, Math.floor(rings.count / 2)) };
    return { low: fewer, likely: rings, high: rings, evidence: 'assumed', source };
  }
  if (nvlink) {
    const cards = Math.max(1, Math.min(local, network.cardsPerNode));
    return between(Math.ceil(cards / 2), cards, 2 * cards, 'assumed', 'one ring for each card');
  }
  return between(1, 1, 2, 'assumed', topology.source);
}

/** Channels of one communicator on this machine. Lower and upper figures differ where the search is not known. */
export function channelCounts(situation: GroupSituation): ChannelEstimate {
  const { low, likely, high, evidence, source } = searchRings(situation);
  return {
    low: countsFrom(low, situation),
    likely: countsFrom(likely, situation),
    high: countsFrom(high, situation),
    evidence,
    source,
  };
}

function countsFrom(rings: Rings, situation: GroupSituation): ChannelCounts {
  const { release, environment: env, layout, topology } = situation;
  const { minCtas, maxCtas } = ctaLimits(situation);
  const maximum = Math.min(env.maxChannels, maxCtas);
  const minimum = Math.max(env.minChannels, minCtas);

  // ncclTopoPostset: doubled; doubled again for few fast rings between nodes; then the user's limits.
  let ring = Math.min(release.maxChannels, 2 * rings.count);
  const manyDomains = layout.domains.length > 1;
  if (topology.computeCapability >= 90 && manyDomains && rings.speed > 45 && ring < 16) ring *= 2;
  ring = Math.max(Math.min(ring, maximum), minimum);

  // ncclTopoComputeP2pChannels.
  let p2p = Math.max(Math.min(ring, env.maxP2pChannels), env.minP2pChannels);
  p2p = Math.min(powerOfTwoUp(p2p), release.maxChannels);

  return {
    search: rings.count,
    alternatesRails: rings.alternatesRails,
    ring,
    p2p,
    p2pPerPeer: p2pPerPeer(situation, p2p),
    ...nvlsCounts(situation),
  };
}

/** The communicator's own limits, or those of NCCL_MIN_CTAS and NCCL_MAX_CTAS, which overrule it. */
function ctaLimits({ environment: env, release, minCtas, maxCtas }: GroupSituation): {
  minCtas: number;
  maxCtas: number;
} {
  return {
    minCtas: env.minCtas ?? minCtas ?? 1,
    maxCtas: Math.min(release.maxChannels, env.maxCtas ?? maxCtas ?? release.maxChannels),
  };
}

/** Channels towards one point-to-point peer: the least over all peers, as a power of two. */
function p2pPerPeer(
  { release, environment: env, layout, topology }: GroupSituation,
  p2p: number,
): number {
  const local = topology.nvlink && env.p2p ? 2 * topology.nvlink.links : 2;
  if (layout.domains.length === 1) return Math.min(powerOfTwoUp(local), p2p);

  if (env.channelsPerNetPeer !== undefined) {
    return Math.min(powerOfTwoUp(Math.min(local, env.channelsPerNetPeer)), p2p);
  }
  let network = 2;
  if (release.netPeerChannels === 'shrink') {
    while (network * layout.size > p2p * 4 && network > 1) network /= 2;
  } else if (release.netPeerChannels === 'bandwidth') {
    const { bandwidth, cardsPerNode } = topology.network;
    if (cardsPerNode > 0)
      network = Math.max(1, Math.ceil(Math.floor(bandwidth) / BANDWIDTH_PER_P2P_CHANNEL));
  }
  // Inside a multi-node communicator local peers get no more than remote ones.
  const alone = layout.ranksPerDomain === 1;
  let perPeer = powerOfTwoUp(alone ? network : Math.min(local, network));
  if (release.netPeerChannels === 'bandwidth') {
    while (perPeer * Math.ceil(layout.size / P2P_PER_BATCH) > p2p && perPeer > 1) perPeer /= 2;
  }
  return Math.min(perPeer, p2p);
}

type NvlsCounts = Pick<ChannelCounts, 'nvls' | 'nvlsHeads' | 'nvlsChunk'>;

/** src/transport/nvls.cc: ncclNvlsInit, ncclNvlsTuning, ncclNvlsTreeSm100Tuning. */
function nvlsCounts(situation: GroupSituation): NvlsCounts {
  const { release, environment: env, layout, topology } = situation;
  const manyDomains = layout.domains.length > 1;
  const supported =
    topology.nvlink?.nvls === true &&
    env.nvls &&
    layout.ranksPerDomain >= release.nvls.minimumGpus &&
    (!manyDomains || release.nvls.multiNode);
  if (!supported) return { nvls: 0, nvlsHeads: 0, nvlsChunk: 0 };

  const [sm90, sm100One, sm100Many] = release.nvls.channels;
  const sm100 = topology.computeCapability >= 100;
  let channels = sm100 ? (manyDomains ? sm100Many : sm100One) : sm90;
  let chunk = DEFAULT_NVLS_CHUNK;
  if (sm100 && manyDomains && release.nvls.sm100TreeTuning) {
    const { bandwidth } = topology.network;
    const local = layout.ranksPerDomain;
    if (layout.domains.length === 2 && bandwidth >= 48) {
      channels = 32;
      if (local <= 4) chunk = 256 * 1024;
    } else if (bandwidth >= 96) {
      channels = local <= 8 ? 24 : 32;
      if (local <= 8) chunk = 256 * 1024;
    } else if (bandwidth >= 48) {
      channels = 24;
    }
  }
  // CTA limits hold for NVLS too; NCCL_MIN/MAX_NCHANNELS do not.
  const { minCtas, maxCtas } = ctaLimits(situation);
  channels = Math.max(minCtas, Math.min(maxCtas, env.nvlsChannels ?? channels));
  return {
    nvls: channels,
    nvlsHeads: Math.min(layout.ranksPerDomain, MAX_NVLS_HEADS),
    nvlsChunk: env.nvlsChunkSize ?? chunk,
  };
}
