// NCCL's environment variables that change device memory, read as NCCL reads them. The job's own environment goes in; what
// is set but does not touch device memory, and what is not modelled, is told apart and reported.

import { MiB } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import type { NcclRelease } from './release.ts';

/** Parsed knobs, defaults filled in. Sizes in bytes, counts of channels. */
export interface NcclEnvironment {
  /** NCCL_CUMEM_ENABLE: physical memory through cuMemCreate (2 MiB granules). Default on (driver 12.0 or newer). */
  readonly cuMem: boolean;
  /** NCCL_RUNTIME_CONNECT. */
  readonly runtimeConnect: boolean;
  /** NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE. */
  readonly buffSize: number;
  readonly llBuffSize: number;
  readonly ll128BuffSize: number;
  /** NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS (ring and tree channels), or their older names with NRINGS. */
  readonly minChannels: number;
  readonly maxChannels: number;
  /** NCCL_MIN_CTAS and NCCL_MAX_CTAS (every kind of channel). */
  readonly minCtas: number | undefined;
  readonly maxCtas: number | undefined;
  readonly minP2pChannels: number;
  readonly maxP2pChannels: number;
  /** NCCL_NVLS_ENABLE, NCCL_NVLS_NCHANNELS, NCCL_NVLS_CHUNKSIZE. */
  readonly nvls: boolean;
  readonly nvlsChannels: number | undefined;
  readonly nvlsChunkSize: number | undefined;
  /** NCCL_P2P_NET_CHUNKSIZE, NCCL_P2P_PCI_CHUNKSIZE, NCCL_P2P_NVL_CHUNKSIZE. */
  readonly p2pNetChunkSize: number;
  readonly p2pPciChunkSize: number;
  readonly p2pNvlChunkSize: number;
  /** NCCL_NCHANNELS_PER_NET_PEER. */
  readonly channelsPerNetPeer: number | undefined;
  /** NCCL_P2P_DISABLE, or NCCL_P2P_LEVEL=LOC (0). */
  readonly p2p: boolean;
  /** NCCL_P2P_READ_ENABLE; undefined: NVLink on compute capability 8.0 only. */
  readonly p2pRead: boolean | undefined;
  /** NCCL_P2P_USE_CUDA_MEMCPY. */
  readonly p2pCopyEngine: boolean;
  /** NCCL_PXN_DISABLE, NCCL_P2P_PXN_LEVEL=0. */
  readonly pxn: boolean;
  /** NCCL_NET_SHARED_BUFFERS. */
  readonly sharedNetBuffers: boolean;
  /** False when the network cannot write GPU memory: NCCL_NET_GDR_LEVEL=LOC (0), NCCL_IB_DISABLE=1, NCCL_NET=Socket. */
  readonly gpuDirect: boolean | undefined;
  /** NCCL_GDRCOPY_ENABLE. */
  readonly gdrCopy: boolean;
  /** NCCL_MNNVL_ENABLE. */
  readonly multiNodeNvlink: boolean;
  /** NCCL_COLLNET_ENABLE. */
  readonly collNet: boolean;
  /** NCCL_COMM_SPLIT_SHARE_RESOURCES. */
  readonly splitShare: boolean;
  /** NCCL_SET_STACK_SIZE: kernel local memory is taken at init. */
  readonly setStackSize: boolean;
  /** NCCL_PAT_ENABLE; undefined is the default (one GPU a node). */
  readonly pat: boolean | undefined;
  /** NCCL_ALGO as written; parsed by the algorithm rule. */
  readonly algorithms: string | undefined;
  /** Variables that were set and read here, in words: `NCCL_BUFFSIZE=1048576`. */
  readonly honoured: readonly string[];
  /** Set, but known not to change device memory. */
  readonly withoutEffect: readonly string[];
  /** Set, may change device memory, and not modelled. */
  readonly notModelled: readonly string[];
}

/** Everything above but the three lists of names. */
type Knobs = Omit<NcclEnvironment, 'honoured' | 'withoutEffect' | 'notModelled'>;
type Draft = { -readonly [K in keyof Knobs]: Knobs[K] };

/** Integers as strtoll with base 0 reads them: decimal, 0x…, octal. */
function integer(name: string, text: string): number {
  if (!/^[+-]?(0x[0-9a-f]+|\d+)$/i.test(text.trim())) {
    throw new UserError('bad-nccl-variable', `${name} must be a whole number, got "${text}"`);
  }
  return Number(text);
}

/** -2 is NCCL's "not set". */
function setting(name: string, text: string): number | undefined {
  const value = integer(name, text);
  return value === -2 ? undefined : value;
}

/** Path distances that NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL take (src/graph/topo.cc): 0 or LOC switches off. */
function isLocalLevel(text: string): boolean {
  return text === '0' || text.toUpperCase() === 'LOC';
}

type Reader = (draft: Draft, name: string, text: string) => void;

const READERS: Readonly<Record<string, Reader>> = {
  NCCL_CUMEM_ENABLE: (draft, name, text) => {
    draft.cuMem = (setting(name, text) ?? 1) !== 0;
  },
  NCCL_RUNTIME_CONNECT: (draft, name, text) => {
    draft.runtimeConnect = integer(name, text) !== 0;
  },
  NCCL_BUFFSIZE: (draft, name, text) => {
    draft.buffSize = setting(name, text) ?? draft.buffSize;
  },
  NCCL_LL_BUFFSIZE: (draft, name, text) => {
    draft.llBuffSize = setting(name, text) ?? draft.llBuffSize;
  },
  NCCL_LL128_BUFFSIZE: (draft, name, text) => {
    draft.ll128BuffSize = setting(name, text) ?? draft.ll128BuffSize;
  },
  NCCL_MIN_NRINGS: minimumChannels,
  NCCL_MIN_NCHANNELS: minimumChannels,
  NCCL_MIN_CTAS: (draft, name, text) => {
    draft.minCtas = setting(name, text);
  },
  NCCL_MAX_NRINGS: maximumChannels,
  NCCL_MAX_NCHANNELS: maximumChannels,
  NCCL_MAX_CTAS: (draft, name, text) => {
    draft.maxCtas = setting(name, text);
  },
  NCCL_MIN_P2P_NCHANNELS: (draft, name, text) => {
    draft.minP2pChannels = integer(name, text);
  },
  NCCL_MAX_P2P_NCHANNELS: (draft, name, text) => {
    draft.maxP2pChannels = integer(name, text);
  },
  NCCL_NVLS_ENABLE: (draft, name, text) => {
    draft.nvls = integer(name, text) !== 0;
  },
  NCCL_NVLS_NCHANNELS: (draft, name, text) => {
    draft.nvlsChannels = setting(name, text);
  },
  NCCL_NVLS_CHUNKSIZE: (draft, name, text) => {
    draft.nvlsChunkSize = integer(name, text);
  },
  NCCL_P2P_NET_CHUNKSIZE: (draft, name, text) => {
    draft.p2pNetChunkSize = integer(name, text);
  },
  NCCL_P2P_PCI_CHUNKSIZE: (draft, name, text) => {
    draft.p2pPciChunkSize = integer(name, text);
  },
  NCCL_P2P_NVL_CHUNKSIZE: (draft, name, text) => {
    draft.p2pNvlChunkSize = integer(name, text);
  },
  NCCL_NCHANNELS_PER_NET_PEER: (draft, name, text) => {
    const value = integer(name, text);
    draft.channelsPerNetPeer = value < 0 ? undefined : value;
  },
  NCCL_P2P_DISABLE: (draft, name, text) => {
    if (integer(name, text) !== 0) draft.p2p = false;
  },
  NCCL_P2P_LEVEL: (draft, _name, text) => {
    if (isLocalLevel(text)) draft.p2p = false;
  },
  NCCL_P2P_READ_ENABLE: (draft, name, text) => {
    const value = setting(name, text);
    draft.p2pRead = value === undefined ? undefined : value !== 0;
  },
  NCCL_P2P_USE_CUDA_MEMCPY: (draft, name, text) => {
    draft.p2pCopyEngine = integer(name, text) !== 0;
  },
  NCCL_PXN_DISABLE: (draft, name, text) => {
    if (integer(name, text) !== 0) draft.pxn = false;
  },
  NCCL_P2P_PXN_LEVEL: (draft, name, text) => {
    if (integer(name, text) === 0) draft.pxn = false;
  },
  NCCL_NET_SHARED_BUFFERS: (draft, name, text) => {
    draft.sharedNetBuffers = (setting(name, text) ?? 1) !== 0;
  },
  NCCL_NET_GDR_LEVEL: (draft, _name, text) => {
    if (isLocalLevel(text)) draft.gpuDirect = false;
  },
  NCCL_IB_DISABLE: (draft, name, text) => {
    if (integer(name, text) !== 0) draft.gpuDirect = false;
  },
  NCCL_NET: (draft, _name, text) => {
    if (text.toLowerCase() === 'socket') draft.gpuDirect = false;
  },
  NCCL_GDRCOPY_ENABLE: (draft, name, text) => {
    draft.gdrCopy = integer(name, text) !== 0;
  },
  NCCL_MNNVL_ENABLE: (draft, name, text) => {
    draft.multiNodeNvlink = integer(name, text) !== 0;
  },
  NCCL_COLLNET_ENABLE: (draft, name, text) => {
    draft.collNet = integer(name, text) !== 0;
  },
  NCCL_COMM_SPLIT_SHARE_RESOURCES: (draft, name, text) => {
    draft.splitShare = integer(name, text) === 1;
  },
  NCCL_SET_STACK_SIZE: (draft, name, text) => {
    draft.setStackSize = integer(name, text) !== 0;
  },
  NCCL_PAT_ENABLE: (draft, name, text) => {
    const value = integer(name, text);
    draft.pat = value === 2 ? undefined : value !== 0;
  },
  NCCL_ALGO: (draft, _name, text) => {
    draft.algorithms = text;
  },
};

function minimumChannels(draft: Draft, name: string, text: string): void {
  draft.minChannels = Math.max(draft.minChannels, setting(name, text) ?? 0);
}

function maximumChannels(draft: Draft, name: string, text: string): void {
  const value = setting(name, text);
  // src/graph/connect.cc, ncclMaxNchannels: below 1 becomes 1.
  if (value !== undefined) draft.maxChannels = Math.min(draft.maxChannels, Math.max(1, value));
}

/**
 * Variables that change timing, logging, transports' parameters or host memory, not device memory. A name that ends in `*`
 * stands for every variable that begins so.
 */
const WITHOUT_EFFECT = [
  'NCCL_PROTO',
  'NCCL_DEBUG*',
  'NCCL_SOCKET_*',
  'NCCL_IB_*',
  'NCCL_RAS_*',
  'NCCL_OOB_*',
  'NCCL_NET_PLUGIN',
  'NCCL_NET_FORCE_FLUSH',
  'NCCL_NET_GDR_READ',
  'NCCL_NET_OVERHEAD',
  'NCCL_GDR_FLUSH_DISABLE',
  'NCCL_NTHREADS',
  'NCCL_LL128_NTHREADS',
  'NCCL_NSOCKS_PERTHREAD',
  'NCCL_SHM_*',
  'NCCL_CUMEM_HOST_ENABLE',
  'NCCL_CHECK_POINTERS',
  'NCCL_COMM_ID',
  'NCCL_COMM_BLOCKING',
  'NCCL_HOSTID',
  'NCCL_IGNORE_CPU_AFFINITY',
  'NCCL_LAUNCH_*',
  'NCCL_NVTX_DISABLE',
  'NCCL_PROGRESS_APPENDOP_FREQ',
  'NCCL_PROXY_*',
  'NCCL_PROFILER_PLUGIN',
  'NCCL_TOPO_DUMP_FILE*',
  'NCCL_GRAPH_DUMP_FILE*',
  'NCCL_GRAPH_MIXING_SUPPORT',
  'NCCL_SET_CPU_STACK_SIZE',
  'NCCL_UID_STAGGER_*',
  'NCCL_WORK_FIFO_BYTES',
  'NCCL_ASYNC_ERROR_HANDLING',
  'NCCL_BLOCKING_WAIT',
  'NCCL_DESYNC_DEBUG',
  'NCCL_TIMEOUT',
  'NCCL_VERSION',
  'NCCL_DMABUF_ENABLE',
  'NCCL_NVLSTREE_MAX_CHUNKSIZE',
];

/** May change device memory or the channel counts, and is not modelled. */
const NOT_MODELLED = [
  'NCCL_CROSS_NIC',
  'NCCL_TUNER_PLUGIN',
  'NCCL_TOPO_FILE',
  'NCCL_GRAPH_FILE',
  'NCCL_GRAPH_REGISTER',
  'NCCL_LOCAL_REGISTER',
  'NCCL_WIN_*',
  'NCCL_SYM_*',
  'NCCL_GIN_*',
  'NCCL_RMA_*',
  'NCCL_NUM_RMA_CTX',
  'NCCL_SHADOW_MEMPOOL_MAX_SIZE',
  'NCCL_DISABLE_MEM_MANAGER',
  'NCCL_ALLOC_P2P_NET_LL_BUFFERS',
  'NCCL_UNPACK_DOUBLE_NCHANNELS',
  'NCCL_P2P_MAX_PEERS',
  'NCCL_P2P_PER_CHANNEL_NET_BW',
  'NCCL_NET_MERGE_*',
  'NCCL_NETDEVS_POLICY',
  'NCCL_CTA_POLICY',
  'NCCL_COMM_SHRINK_SHARE_RESOURCES',
  'NCCL_NVB_*',
  'NCCL_CGA_CLUSTER_SIZE',
];

function matches(name: string, patterns: readonly string[]): boolean {
  return patterns.some((pattern) =>
    pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern,
  );
}

/** The variables that are honoured, for a message or the docs. */
export function honouredVariables(): string[] {
  return Object.keys(READERS);
}

/**
 * Reads the NCCL_* variables of `env`; others are ignored.
 * @param options.strict an unknown NCCL_* variable is an error; otherwise it counts as not modelled.
 * @throws UserError `unknown-nccl-variable` (strict) that lists the honoured ones, `bad-nccl-variable` for a value that NCCL
 *   could not read.
 */
export function readEnvironment(
  env: Readonly<Record<string, string | undefined>>,
  release: NcclRelease,
  options: { strict?: boolean } = {},
): NcclEnvironment {
  const draft: Draft = {
    cuMem: true,
    runtimeConnect: true,
    buffSize: 4 * MiB,
    // src/include/device.h: NCCL_LL_BUFF_SIZE and NCCL_LL128_BUFF_SIZE.
    llBuffSize: 512 * 1024,
    ll128BuffSize: 120 * 640 * 8 * 8,
    minChannels: 0,
    maxChannels: release.maxChannels,
    minCtas: undefined,
    maxCtas: undefined,
    minP2pChannels: 1,
    maxP2pChannels: release.maxChannels,
    nvls: true,
    nvlsChannels: undefined,
    nvlsChunkSize: undefined,
    p2pNetChunkSize: 128 * 1024,
    p2pPciChunkSize: 128 * 1024,
    p2pNvlChunkSize: 512 * 1024,
    channelsPerNetPeer: undefined,
    p2p: true,
    p2pRead: undefined,
    p2pCopyEngine: false,
    pxn: true,
    sharedNetBuffers: true,
    gpuDirect: undefined,
    gdrCopy: false,
    multiNodeNvlink: true,
    collNet: false,
    splitShare: false,
    setStackSize: false,
    pat: undefined,
    algorithms: undefined,
  };
  const honoured: string[] = [];
  const withoutEffect: string[] = [];
  const notModelled: string[] = [];
  for (const [name, text] of Object.entries(env)) {
    if (!name.startsWith('NCCL_') || text === undefined || text === '') continue;
    const written = `${name}=${text}`;
    const reader = READERS[name];
    if (reader) {
      reader(draft, name, text);
      honoured.push(written);
    } else if (matches(name, WITHOUT_EFFECT)) {
      withoutEffect.push(written);
    } else if (matches(name, NOT_MODELLED) || !options.strict) {
      notModelled.push(written);
    } else {
      throw new UserError(
        'unknown-nccl-variable',
        `${name} is not a variable that this model knows. Honoured: ${honouredVariables().join(', ')}.`,
      );
    }
  }
  draft.maxChannels = Math.min(draft.maxChannels, release.maxChannels);
  draft.minChannels = Math.min(draft.minChannels, release.maxChannels);
  return { ...draft, honoured, withoutEffect, notModelled };
}
