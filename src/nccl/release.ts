// What changed between NCCL releases, as far as device memory is concerned. One row a release, read at the named tag of
// github.com/NVIDIA/nccl; a version between two rows behaves as the older one, and says so.

import { UserError } from '../base/errors.ts';

/** How the NVLS (NVLink SHARP) buffers are laid out. */
export type NvlsLayout =
  /** One buffer at init: channels x 2 x (NCCL_BUFFSIZE + 2 MiB) x heads. */
  | 'buffsize'
  /** One buffer at init: channels x 2 x (8 x chunk + 2 MiB) x heads. */
  | 'chunk'
  /** 2 MiB of credits at init, and a data buffer of channels x 2 x 8 x chunk x heads at the first NVLS collective. */
  | 'credits';

export interface NcclRelease {
  /** `major.minor.patch` of the row. */
  readonly version: string;
  /** Tag in github.com/NVIDIA/nccl. */
  readonly tag: string;
  /** Most channels of a communicator (src/include/device.h, MAXCHANNELS). */
  readonly maxChannels: number;
  /**
   * Connections are made at the first use of an algorithm instead of at init (src/init.cc, NCCL_RUNTIME_CONNECT; needs
   * cuMem).
   */
  readonly lazyConnect: boolean;
  /** Separately allocated blocks of devCommSetup (src/init.cc): the communicator; from 2.23 rankToLocalRank too. */
  readonly deviceCommBlocks: 1 | 2;
  readonly nvls: {
    readonly layout: NvlsLayout;
    /** Fewest GPUs of one NVLink domain that get NVLS (src/transport/nvls.cc, ncclNvlsInit). */
    readonly minimumGpus: 2 | 3;
    /** NVLS also across nodes, as a tree. Switched off in 2.20 (ncclNvlsInit). */
    readonly multiNode: boolean;
    /** Channels by compute capability below 100, from 100 in one domain, from 100 across domains. */
    readonly channels: readonly [sm90: number, sm100OneDomain: number, sm100ManyDomains: number];
    /** Which channels carry the buffers and the peer structures: the NVLS ones, or all of the collective ones. */
    readonly bufferChannels: 'nvls' | 'all';
    readonly peerChannels: 'nvls' | 'all';
    /** The buffer is rounded up to the recommended multicast granularity, not only to 2 MiB. */
    readonly multicastRounding: boolean;
    /** ncclNvlsTreeSm100Tuning picks channels and chunk by nodes, NIC speed and ranks a node. */
    readonly sm100TreeTuning: boolean;
  };
  readonly search: {
    /** GB/s of the fastest ring that is tried between nodes (src/graph/search.cc, sm90SpeedArrayInter, sm100SpeedArrayInter). */
    readonly fastestRing: 48 | 96;
    /** Rings may enter and leave a node on different rails (src/graph/connect.cc, ncclTopoPostset). */
    readonly alternateRails: boolean;
  };
  /** Point-to-point channels to a peer over the network (src/graph/paths.cc, ncclTopoGetNchannels). */
  readonly netPeerChannels: 'fixed' | 'shrink' | 'bandwidth';
  /** The shared-buffer chunk is doubled on Arm hosts with compute capability 10 (src/init.cc, computeBuffSizes). */
  readonly doubleChunkOnArm: boolean;
  /** PAT algorithm for all-gather and reduce-scatter with one GPU a node (src/graph/tuning.cc, ncclPatEnable). */
  readonly pat: boolean;
}

const V219: NcclRelease = {
  version: '2.19.3',
  tag: 'v2.19.3-1',
  maxChannels: 32,
  lazyConnect: false,
  deviceCommBlocks: 1,
  nvls: {
    layout: 'buffsize',
    minimumGpus: 3,
    multiNode: true,
    channels: [16, 16, 16],
    bufferChannels: 'nvls',
    peerChannels: 'nvls',
    multicastRounding: true,
    sm100TreeTuning: false,
  },
  search: { fastestRing: 48, alternateRails: false },
  netPeerChannels: 'fixed',
  doubleChunkOnArm: false,
  pat: false,
};

const V220: NcclRelease = {
  ...V219,
  version: '2.20.5',
  tag: 'v2.20.5-1',
  nvls: { ...V219.nvls, multiNode: false, bufferChannels: 'all', peerChannels: 'all' },
  search: { ...V219.search, alternateRails: true },
};

const V221: NcclRelease = {
  ...V220,
  version: '2.21.5',
  tag: 'v2.21.5-1',
  nvls: { ...V220.nvls, layout: 'chunk', multiNode: true },
};

const V222: NcclRelease = {
  ...V221,
  version: '2.22.3',
  tag: 'v2.22.3-1',
  lazyConnect: true,
  nvls: { ...V221.nvls, layout: 'credits', bufferChannels: 'nvls' },
  netPeerChannels: 'shrink',
};

const V223: NcclRelease = {
  ...V222,
  version: '2.23.4',
  tag: 'v2.23.4-1',
  deviceCommBlocks: 2,
  pat: true,
};

const V224: NcclRelease = { ...V223, version: '2.24.3', tag: 'v2.24.3-1' };

const V225: NcclRelease = {
  ...V224,
  version: '2.25.1',
  tag: 'v2.25.1-1',
  maxChannels: 64,
  nvls: { ...V224.nvls, channels: [16, 32, 32] },
};

const V226: NcclRelease = {
  ...V225,
  version: '2.26.2',
  tag: 'v2.26.2-1',
  nvls: { ...V225.nvls, multicastRounding: false },
};

const V227: NcclRelease = {
  ...V226,
  version: '2.27.5',
  tag: 'v2.27.5-1',
  nvls: { ...V226.nvls, channels: [16, 24, 32] },
};

const V228: NcclRelease = {
  ...V227,
  version: '2.28.9',
  tag: 'v2.28.9-1',
  nvls: { ...V227.nvls, minimumGpus: 2, peerChannels: 'nvls' },
  search: { ...V227.search, fastestRing: 96 },
};

const V229: NcclRelease = {
  ...V228,
  version: '2.29.7',
  tag: 'v2.29.7-1',
  netPeerChannels: 'bandwidth',
  doubleChunkOnArm: true,
};

const V230: NcclRelease = {
  ...V229,
  version: '2.30.7',
  tag: 'v2.30.7-1',
  nvls: { ...V229.nvls, sm100TreeTuning: true },
};

/** Oldest first. */
export const NCCL_RELEASES: readonly NcclRelease[] = [
  V219,
  V220,
  V221,
  V222,
  V223,
  V224,
  V225,
  V226,
  V227,
  V228,
  V229,
  V230,
];

/** The release that comes with the PyTorch this project is pinned to (torch 2.14.1+cu130 ships nvidia-nccl 2.30.7). */
export const DEFAULT_RELEASE = V230;

export interface ReleaseChoice {
  /** As asked for. */
  readonly version: string;
  readonly release: NcclRelease;
  /** Set when no table was read at exactly this version. A sentence for the person. */
  readonly note?: string;
}

/**
 * The table for a version such as `2.27.5`, `v2.27.5-1` or `2.27`. A version without a table of its own gets the nearest
 * older one, of the same minor release where there is one, with a note.
 * @throws UserError `unknown-nccl-version` that lists the known versions, for what is no version or older than the oldest.
 */
export function findRelease(text: string): ReleaseChoice {
  const match = /^v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+].*)?$/.exec(text.trim());
  if (!match) throw unknownVersion(text, 'is not an NCCL version');
  const [major, minor] = [Number(match[1]), Number(match[2])];
  const patch = match[3] === undefined ? undefined : Number(match[3]);
  const version = patch === undefined ? `${major}.${minor}` : `${major}.${minor}.${patch}`;

  const exact = NCCL_RELEASES.find((release) => release.version === version);
  if (exact) return { version, release: exact };
  const sameMinor = NCCL_RELEASES.find((release) =>
    release.version.startsWith(`${major}.${minor}.`),
  );
  if (sameMinor) {
    return patch === undefined
      ? { version: sameMinor.version, release: sameMinor }
      : { version, release: sameMinor, note: inexact(version, sameMinor) };
  }
  const older = NCCL_RELEASES.filter((release) => olderThan(release.version, major, minor)).at(-1);
  if (!older) throw unknownVersion(text, 'is older than every known version');
  return { version, release: older, note: inexact(version, older) };
}

function olderThan(version: string, major: number, minor: number): boolean {
  const [knownMajor, knownMinor] = version.split('.').map(Number);
  return knownMajor < major || (knownMajor === major && knownMinor < minor);
}

function inexact(version: string, release: NcclRelease): string {
  return `NCCL ${version} has no table of its own; the one of ${release.version} (${release.tag}) is used`;
}

function unknownVersion(text: string, what: string): UserError {
  const known = NCCL_RELEASES.map((release) => release.version).join(', ');
  return new UserError('unknown-nccl-version', `"${text}" ${what}. Known: ${known}.`);
}
