// Device memory of one communicator on one of its ranks, as a set of keyed allocations that only grows: what is there is not
// taken again, so repeating a collective costs nothing. One instance is one scenario: it knows its channel counts and which
// algorithms run. Uncertainty is three scenarios side by side (communicator.ts).
//
// Sizes follow NCCL's own allocation sites, named beside each figure; they were checked against the allocations of NCCL's
// host code at 2.19.3 to 2.30.7.

import { KiB, MiB, roundUp } from '../base/bytes.ts';
import type { Algorithm } from './algorithm.ts';
import type { ChannelCounts, GroupSituation } from './channels.ts';
import { nvlsTreePeers, patPeers, ringPeers, treePeers } from './layout.ts';
import type { TermName } from './term.ts';

/** cuMemGetAllocationGranularity (minimum), and the alignment of CUDA IPC buffers. */
const GRANULE = 2 * MiB;
/** cudaMalloc's smallest piece. */
const SMALL_GRANULE = 512;
/** src/include/comm.h: ncclSendMem and ncclRecvMem are one page each. */
const CONTROL_PAGE = 4 * KiB;
/** src/include/device.h, NCCL_STEPS. */
const STEPS = 8;
/** src/include/net.h, NCCL_SHARED_STEPS. */
const SHARED_STEPS = 16;
/** sizeof(ncclDevChannelPeer) at 2.30. */
const DEVICE_PEER = 608;

export type Allocations = Map<string, { readonly name: TermName; readonly bytes: number }>;

/** How two ranks of one NVLink domain, or of one node, reach each other. */
export type LocalTransport = 'nvlink' | 'pcie' | 'host';

export interface ScenarioOptions {
  readonly counts: ChannelCounts;
  readonly local: LocalTransport;
  /** What NVLS buffers are rounded up to where the release does. */
  readonly multicastGranularity: number;
  /** Set for a split that shares the resources of its parent: its connections live in the parent's map. */
  readonly sharedWith?: CommunicatorMemory | undefined;
  /** Identity of a position that holds across a split: the global rank. */
  readonly globalRank: (position: number) => number;
}

/** What one step added, by kind. `undo` takes it back (an allocation of the step failed). */
export interface MemoryStep {
  readonly added: ReadonlyMap<TermName, number>;
  undo(): void;
}

export class CommunicatorMemory {
  readonly #situation: GroupSituation;
  readonly #options: ScenarioOptions;
  /** Freed when this communicator is destroyed. */
  readonly #own: Allocations = new Map();
  /** Connections; the parent's map when resources are shared. */
  readonly #connections: Allocations;
  /** What the running step took, for undo. */
  #taken: { map: Allocations; key: string }[] = [];

  constructor(situation: GroupSituation, options: ScenarioOptions) {
    this.#situation = situation;
    this.#options = options;
    this.#connections = options.sharedWith ? options.sharedWith.#connections : new Map();
  }

  /** Bytes held, by kind. Connections that live in a parent's map are the parent's. */
  terms(): Map<TermName, number> {
    const terms = new Map<TermName, number>();
    const maps = this.#options.sharedWith ? [this.#own] : [this.#own, this.#connections];
    for (const map of maps) {
      for (const { name, bytes } of map.values()) terms.set(name, (terms.get(name) ?? 0) + bytes);
    }
    return terms;
  }

  /** ncclCommInitRank (or the split): structures; every connection too where the release or the user connects eagerly. */
  initialise(): MemoryStep {
    return this.#step(() => {
      this.#takeStructures();
      this.#takeNvlsAtInit();
      if (!this.connectsLazily) this.#connectEverything();
    });
  }

  /** First use of an algorithm. `peer` is a position, for send and receive only. */
  use(
    algorithm: Algorithm,
    target: { sendTo?: number; receiveFrom?: number; everyPeer?: boolean } = {},
  ): MemoryStep {
    return this.#step(() => {
      switch (algorithm) {
        case 'none':
          return;
        case 'ring':
          return this.#connectRing();
        case 'tree':
          return this.#connectTree();
        case 'nvls':
          return this.#takeNvlsBuffers();
        case 'nvls_tree':
          this.#takeNvlsBuffers();
          return this.#connectNvlsTree();
        case 'pat':
          return this.#connectPat();
        case 'collnet':
          return this.#takeCollNet();
        case 'p2p':
          return this.#connectPeers(target);
      }
    });
  }

  get connectsLazily(): boolean {
    const { release, environment } = this.#situation;
    return release.lazyConnect && environment.cuMem && environment.runtimeConnect;
  }

  #step(action: () => void): MemoryStep {
    this.#taken = [];
    action();
    const taken = this.#taken;
    const added = new Map<TermName, number>();
    for (const { map, key } of taken) {
      const { name, bytes } = map.get(key)!;
      added.set(name, (added.get(name) ?? 0) + bytes);
    }
    return {
      added,
      undo: () => {
        for (const { map, key } of taken) map.delete(key);
      },
    };
  }

  #take(map: Allocations, key: string, name: TermName, bytes: number): void {
    if (bytes === 0 || map.has(key)) return;
    map.set(key, { name, bytes });
    this.#taken.push({ map, key });
  }

  /** A structure that is smaller than a granule. */
  #structure(bytes: number): number {
    return roundUp(bytes, this.#situation.environment.cuMem ? GRANULE : SMALL_GRANULE);
  }

  #takeStructures(): void {
    const { release, layout, environment } = this.#situation;
    const { counts } = this.#options;
    const channels = Math.max(counts.ring, counts.p2p, counts.nvls);
    const peers = layout.size + 1 + layout.ranksPerDomain;
    // initChannel: sharedRes->devPeers (once for all communicators that share), devPeers, devRingUserRanks.
    const shared = this.#options.sharedWith ? 0 : this.#structure(layout.size * DEVICE_PEER);
    const perChannel = shared + this.#structure(peers * 8) + this.#structure(layout.size * 4);
    this.#take(this.#own, 'channels', 'channel structures', channels * perChannel);
    // devCommSetup: about 400 bytes a channel, and from 2.23 the table of local ranks.
    const communicator =
      this.#structure(release.maxChannels * 400) +
      (release.deviceCommBlocks === 2 ? this.#structure(layout.size * 4) : 0);
    this.#take(this.#own, 'communicator', 'device communicator', communicator);
    if (environment.gdrCopy) {
      // gdrcopy.h, ncclGdrCudaCalloc: 1 MiB of FIFO aligned to the 64 KiB page of the GPU.
      const fifo = roundUp(1 * MiB + 64 * KiB - 1, environment.cuMem ? GRANULE : 64 * KiB);
      this.#take(this.#own, 'gdrcopy', 'GDRCopy work FIFO', fifo);
    }
  }

  #takeNvlsAtInit(): void {
    const { release, layout } = this.#situation;
    const { counts } = this.#options;
    if (counts.nvls === 0) return;
    const peerChannels = release.nvls.peerChannels === 'nvls' ? counts.nvls : counts.ring;
    const peers = this.#structure(layout.ranksPerDomain * DEVICE_PEER);
    this.#take(this.#own, 'nvls peers', 'NVLS peer structures', peerChannels * peers);
    if (release.nvls.layout === 'credits') {
      const credits = roundUp(counts.nvls * 2 * 64 * counts.nvlsHeads, GRANULE);
      this.#take(this.#own, 'nvls credits', 'NVLS credits', credits);
    } else {
      this.#takeNvlsBuffers();
    }
  }

  #takeNvlsBuffers(): void {
    const { release, environment } = this.#situation;
    const { counts, multicastGranularity } = this.#options;
    const channels = release.nvls.bufferChannels === 'nvls' ? counts.nvls : counts.ring;
    const buffer = {
      buffsize: environment.buffSize + 2 * MiB,
      chunk: STEPS * counts.nvlsChunk + 2 * MiB,
      credits: STEPS * counts.nvlsChunk,
    }[release.nvls.layout];
    const granularity = release.nvls.multicastRounding ? multicastGranularity : GRANULE;
    const bytes = roundUp(channels * 2 * buffer * counts.nvlsHeads, granularity);
    this.#take(this.#own, 'nvls buffers', 'NVLS buffers', bytes);
  }

  /** src/init.cc, initTransportsRank without run-time connection. */
  #connectEverything(): void {
    const { layout, release, environment } = this.#situation;
    if (layout.size > 1) {
      this.#connectRing();
      this.#connectTree();
      if (this.#options.counts.nvls > 0) {
        this.#takeNvlsBuffers();
        this.#connectNvlsTree();
      }
      const pat = environment.pat ?? layout.ranksPerDomain === 1;
      if (release.pat && pat && layout.domains.length > 1) this.#connectPat();
    }
    // The local NET proxy, and those of the local GPUs that relay for this one (PXN).
    this.#takeSendPools();
  }

  #connectRing(): void {
    const { layout } = this.#situation;
    const { counts } = this.#options;
    for (let channel = 0; channel < counts.ring; channel++) {
      const { previous, next } = ringPeers(layout, channel, counts);
      this.#connect('send', channel, next, 'P2P buffers (ring)', 'NET buffers (ring)');
      this.#connect('receive', channel, previous, 'P2P buffers (ring)', 'NET buffers (ring)');
    }
  }

  #connectTree(): void {
    const { layout, topology } = this.#situation;
    const { counts } = this.#options;
    const balanced = topology.computeCapability < 90;
    for (let channel = 0; channel < counts.ring; channel++) {
      const { up, down } = treePeers(layout, channel, counts.search, balanced);
      for (const peer of up === undefined ? down : [up, ...down]) {
        this.#connect('send', channel, peer, 'P2P buffers (tree)', 'NET buffers (tree)');
        this.#connect('receive', channel, peer, 'P2P buffers (tree)', 'NET buffers (tree)');
      }
    }
  }

  #connectNvlsTree(): void {
    const { layout } = this.#situation;
    const { counts } = this.#options;
    for (let channel = 0; channel < counts.nvls; channel++) {
      for (const peer of nvlsTreePeers(layout, channel, counts.nvlsHeads)) {
        this.#connect('send', channel, peer, 'NET buffers (NVLS tree)', 'NET buffers (NVLS tree)');
        this.#connect(
          'receive',
          channel,
          peer,
          'NET buffers (NVLS tree)',
          'NET buffers (NVLS tree)',
        );
      }
    }
  }

  #connectPat(): void {
    const { layout } = this.#situation;
    for (let channel = 0; channel < this.#options.counts.ring; channel++) {
      for (const peer of patPeers(layout)) {
        this.#connect('send', channel, peer, 'NET buffers (PAT)', 'NET buffers (PAT)');
        this.#connect('receive', channel, peer, 'NET buffers (PAT)', 'NET buffers (PAT)');
      }
    }
  }

  #takeCollNet(): void {
    const { environment } = this.#situation;
    if (!this.#gpuDirect) return;
    const bytes = roundUp(2 * this.#options.counts.ring * environment.buffSize, GRANULE);
    this.#take(this.#own, 'collnet', 'CollNet shared buffers', bytes);
  }

  #connectPeers(target: { sendTo?: number; receiveFrom?: number; everyPeer?: boolean }): void {
    const { layout } = this.#situation;
    if (target.everyPeer) {
      for (let peer = 0; peer < layout.size; peer++) {
        if (peer === layout.self) continue;
        this.#connectPeer('send', peer, true);
        this.#connectPeer('receive', peer, true);
      }
    }
    if (target.sendTo !== undefined && target.sendTo !== layout.self) {
      this.#connectPeer('send', target.sendTo, false);
    }
    if (target.receiveFrom !== undefined && target.receiveFrom !== layout.self) {
      this.#connectPeer('receive', target.receiveFrom, false);
    }
  }

  /** Connections of send and receive are apart from those of the collectives (connIndex 1). */
  #connectPeer(direction: 'send' | 'receive', peer: number, everyPeer: boolean): void {
    const { environment } = this.#situation;
    const { counts } = this.#options;
    if (this.#isLocal(peer)) {
      for (let part = 0; part < counts.p2pPerPeer; part++) {
        const key = `p2p ${part} ${direction} ${this.#options.globalRank(peer)}`;
        this.#take(this.#connections, key, 'P2P buffers (send/recv)', this.#localBuffer(direction));
      }
      return;
    }
    if (!this.#gpuDirect) return;
    if (!environment.sharedNetBuffers) {
      // Dedicated buffers of the SIMPLE protocol alone (src/transport/net.cc, connIndex 1).
      for (let part = 0; part < counts.p2pPerPeer; part++) {
        const key = `p2p ${part} ${direction} ${this.#options.globalRank(peer)}`;
        this.#take(
          this.#connections,
          key,
          'NET shared pool',
          roundUp(environment.buffSize, GRANULE),
        );
      }
      return;
    }
    if (direction === 'receive') this.#takePool('receive', 0);
    // A send to another rail goes through the local GPU on that rail, whose memory then holds the pool; in an all-to-all
    // every local rank does the same, so that this GPU holds one pool for each of them.
    else if (everyPeer) this.#takeSendPools();
    else this.#takePool('send', 0);
  }

  #takeSendPools(): void {
    const { layout, environment } = this.#situation;
    const relayed = environment.pxn && layout.domains.length > 1;
    const pools = relayed ? layout.domains[layout.selfDomain].length : 1;
    for (let user = 0; user < pools; user++) this.#takePool('send', user);
  }

  #takePool(direction: 'send' | 'receive', user: number): void {
    const { environment: env, layout, topology, release } = this.#situation;
    let chunk = env.p2pPciChunkSize;
    if (layout.domains.length > 1) {
      const arm =
        release.doubleChunkOnArm && topology.cpu === 'arm' && topology.computeCapability >= 100;
      chunk = env.p2pNetChunkSize * (arm ? 2 : 1);
    } else if (topology.nvlink || layout.size === 1) {
      chunk = env.p2pNvlChunkSize;
    }
    // computeBuffSizes: no larger than a step of the SIMPLE buffer.
    chunk = Math.min(chunk, Math.floor(env.buffSize / STEPS));
    const bytes = roundUp(this.#options.counts.p2p * SHARED_STEPS * chunk, GRANULE);
    this.#take(this.#connections, `pool ${direction} ${user}`, 'NET shared pool', bytes);
  }

  /** One direction of one channel between this rank and a peer, for collectives (connIndex 0). */
  #connect(
    direction: 'send' | 'receive',
    channel: number,
    peer: number,
    localName: TermName,
    networkName: TermName,
  ): void {
    if (peer === this.#situation.layout.self) return;
    const key = `${channel} ${direction} ${this.#options.globalRank(peer)}`;
    if (this.#isLocal(peer)) {
      this.#take(this.#connections, key, localName, this.#localBuffer(direction));
    } else {
      this.#take(this.#connections, key, networkName, this.#networkBuffer(direction));
    }
  }

  #isLocal(peer: number): boolean {
    const { domains, selfDomain } = this.#situation.layout;
    return domains[selfDomain].includes(peer);
  }

  get #gpuDirect(): boolean {
    const { environment, topology } = this.#situation;
    return (
      environment.gpuDirect ?? (topology.network.gpuDirect && topology.network.cardsPerNode > 0)
    );
  }

  /** src/transport/p2p.cc: the receiver's side holds the buffers; the SIMPLE one moves to the sender when peers read. */
  #localBuffer(direction: 'send' | 'receive'): number {
    const { local } = this.#options;
    // src/transport/shm.cc: host memory.
    if (local === 'host') return 0;
    const { environment: env, topology } = this.#situation;
    const reads = env.p2pRead ?? (local === 'nvlink' && topology.computeCapability === 80);
    const simple = env.buffSize;
    if (direction === 'send') {
      const copyEngine = env.p2pCopyEngine ? roundUp(simple, GRANULE) : 0;
      return roundUp(CONTROL_PAGE + (reads ? simple : 0), GRANULE) + copyEngine;
    }
    const latency = env.llBuffSize + env.ll128BuffSize;
    return roundUp(CONTROL_PAGE + latency + (reads ? 0 : simple), GRANULE);
  }

  /** src/transport/net.cc: buffers of a dedicated connection; host memory without GPUDirect RDMA. */
  #networkBuffer(direction: 'send' | 'receive'): number {
    if (!this.#gpuDirect) return 0;
    const { buffSize, llBuffSize, ll128BuffSize } = this.#situation.environment;
    const bytes = ll128BuffSize + buffSize + (direction === 'receive' ? llBuffSize : 0);
    return roundUp(bytes, GRANULE);
  }
}
