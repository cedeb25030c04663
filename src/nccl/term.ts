// A term: one kind of device memory that NCCL takes, with its size, how long it lives, how it is known and where that was
// read. Kinds are listed once, here; communicators say how many bytes of each they took.

import { addBands, type Band } from '../base/band.ts';
import { type Evidence, weakestEvidence } from '../base/evidence.ts';
import type { NcclRelease } from './release.ts';

/** How long the bytes stay. */
export type Lifetime =
  /** Until the communicator is destroyed. */
  | 'communicator'
  /** Until the process ends. */
  | 'process'
  /** Until the collective completes. */
  | 'collective';

interface TermKind {
  /** File and function in NCCL. */
  readonly where: string;
  /** What the figure leaves out. */
  readonly omits: string;
}

const NONE = 'nothing known';

export const TERM_KINDS = {
  'channel structures': {
    where: 'src/channel.cc initChannel (2 MiB granules: include/alloc.h ncclCuMemAlloc)',
    omits: 'structures above 2 MiB (more than 3,000 ranks)',
  },
  'NVLS peer structures': { where: 'src/channel.cc initNvlsChannel', omits: NONE },
  'device communicator': { where: 'src/init.cc devCommSetup', omits: 'CollNet structures' },
  'NVLS credits': { where: 'src/transport/nvls.cc ncclNvlsSetup', omits: NONE },
  'NVLS buffers': {
    where: 'src/transport/nvls.cc ncclNvlsBufferSetup',
    omits: 'registered user buffers',
  },
  'P2P buffers (ring)': { where: 'src/transport/p2p.cc p2pSendSetup, p2pRecvSetup', omits: NONE },
  'P2P buffers (tree)': { where: 'src/transport/p2p.cc p2pSendSetup, p2pRecvSetup', omits: NONE },
  'P2P buffers (send/recv)': {
    where: 'src/transport/p2p.cc p2pSendSetup, p2pRecvSetup',
    omits: 'pointer tables of registered buffers',
  },
  'NET buffers (ring)': {
    where: 'src/transport/net.cc sendProxyConnect, recvProxyConnect',
    omits: 'buffers that network plugins take themselves',
  },
  'NET buffers (tree)': {
    where: 'src/transport/net.cc sendProxyConnect, recvProxyConnect',
    omits: 'buffers that network plugins take themselves',
  },
  'NET buffers (NVLS tree)': {
    where: 'src/transport/net.cc sendProxyConnect, recvProxyConnect',
    omits: 'buffers that network plugins take themselves',
  },
  'NET buffers (PAT)': {
    where: 'src/transport/net.cc sendProxyConnect, recvProxyConnect',
    omits: 'buffers that network plugins take themselves',
  },
  'NET shared pool': {
    where: 'src/transport/net.cc sharedNetBuffersInit',
    omits: 'pools that other local ranks keep here for sends that this rank does not make',
  },
  'CollNet shared buffers': {
    where: 'src/transport/coll_net.cc sharedBuffersInit',
    omits: 'CollNet structures',
  },
  'GDRCopy work FIFO': { where: 'src/init.cc devCommSetup', omits: NONE },
} as const satisfies Readonly<Record<string, TermKind>>;

export type TermName = keyof typeof TERM_KINDS;

/** In the order in which they are shown. */
export const TERM_NAMES = Object.keys(TERM_KINDS) as TermName[];

export interface MemoryTerm {
  readonly name: string;
  readonly bytes: Band;
  readonly lifetime: Lifetime;
  readonly evidence: Evidence;
  /** Project, tag, file and function. */
  readonly source: string;
  readonly omits: string;
}

/** A term of a kind that NCCL takes for a communicator. */
export function communicatorTerm(
  name: TermName,
  bytes: Band,
  evidence: Evidence,
  release: NcclRelease,
): MemoryTerm {
  const { where, omits } = TERM_KINDS[name];
  const source = `NCCL ${release.tag} ${where}`;
  return { name, bytes, lifetime: 'communicator', evidence, source, omits };
}

/** Adds terms of the same name and source together; the sum is as strong as its weakest part. */
export function mergeTerms(terms: Iterable<MemoryTerm>): MemoryTerm[] {
  const merged = new Map<string, MemoryTerm>();
  for (const term of terms) {
    const key = `${term.name}\0${term.source}\0${term.lifetime}`;
    const known = merged.get(key);
    merged.set(
      key,
      known === undefined
        ? term
        : {
            ...known,
            bytes: addBands(known.bytes, term.bytes),
            evidence: weakestEvidence([known.evidence, term.evidence]),
          },
    );
  }
  return [...merged.values()];
}
