// Which algorithm a collective takes. NCCL decides with a time model that is re-tuned in every release (src/graph/tuning.cc,
// ncclTopoTuneModel); memory only depends on which algorithms were ever used. The rule here is a replaceable function: where
// it does not know, it names every candidate, and the model gives a low and a high figure.

import { KiB, MiB } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import type { Evidence } from '../base/evidence.ts';
import type { ChannelCounts, GroupSituation } from './channels.ts';

export type Algorithm = 'ring' | 'tree' | 'nvls' | 'nvls_tree' | 'pat' | 'collnet' | 'p2p' | 'none';

/** Kinds of collective, as the trace spells them. */
export const COLLECTIVES = [
  'all_reduce',
  'all_gather',
  'reduce_scatter',
  'broadcast',
  'reduce',
  'barrier',
  'all_to_all',
  'gather',
  'scatter',
  'send',
  'recv',
] as const;
export type Collective = (typeof COLLECTIVES)[number];

export interface AlgorithmQuestion {
  readonly collective: Collective;
  /** Payload as NCCL counts it. */
  readonly bytes: number;
  readonly situation: GroupSituation;
  readonly counts: ChannelCounts;
}

export interface AlgorithmChoice {
  /** Every algorithm that may be taken; more than one where it is not known. */
  readonly candidates: readonly Algorithm[];
  readonly likely: Algorithm;
  readonly evidence: Evidence;
  readonly reason: string;
}

export type AlgorithmRule = (question: AlgorithmQuestion) => AlgorithmChoice;

function certain(
  algorithm: Algorithm,
  reason: string,
  evidence: Evidence = 'source',
): AlgorithmChoice {
  return { candidates: [algorithm], likely: algorithm, evidence, reason };
}

function uncertain(
  candidates: readonly Algorithm[],
  likely: Algorithm,
  reason: string,
): AlgorithmChoice {
  return { candidates, likely, evidence: 'assumed', reason };
}

/**
 * The rule that comes with this package.
 *
 * - One NVLink domain: RING for everything but large all-reduces. RING's LL protocol has the least latency (TREE never beats
 *   it there), and NVLS wins once the payload is worth its 25 µs of latency: about 1.1 MB on eight H100
 *   (NCCL v2.27.5-1 src/graph/tuning.cc: 25 µs + n / 267 GB/s against 15 µs + n / 80.6 GB/s). Four ranks stay with RING:
 *   observed at 4 KiB and 512 MiB on H100 and GB200.
 * - Several domains: TREE for small all-reduces, NVLS_TREE for large ones (observed at 4 KiB and 512 MiB on 2 x 8 H100),
 *   TREE or RING without NVLS.
 * - All-gather, reduce-scatter: RING; with one GPU a node from NCCL 2.23 on perhaps PAT.
 * - Broadcast, reduce: RING. Everything else is built from sends and receives.
 */
export const defaultAlgorithmRule: AlgorithmRule = (question) => {
  const { collective, situation } = question;
  if (situation.layout.size === 1) return certain('none', 'one rank has no peers');
  switch (collective) {
    case 'all_to_all':
    case 'gather':
    case 'scatter':
    case 'send':
    case 'recv':
      return certain('p2p', 'built from ncclSend and ncclRecv');
    case 'broadcast':
    case 'reduce':
      return restrict(question, certain('ring', 'ncclTopoTuneModel: RING only'));
    case 'all_gather':
    case 'reduce_scatter':
      return restrict(question, gatherChoice(question));
    case 'all_reduce':
    case 'barrier':
      return restrict(question, allReduceChoice(question));
  }
};

/** Up to here the latency of the algorithm decides. */
const SMALL = 64 * KiB;

function allReduceChoice({
  bytes,
  situation,
  counts,
  collective,
}: AlgorithmQuestion): AlgorithmChoice {
  const { layout, topology } = situation;
  const size = collective === 'barrier' ? 4 : bytes;
  if (layout.domains.length === 1) {
    if (counts.nvls === 0) return certain('ring', 'one node without NVLS');
    if (size <= 256 * KiB) return certain('ring', 'RING LL has the least latency in one domain');
    if (layout.size <= 4) return certain('ring', 'RING is faster than NVLS up to 4 ranks');
    if (layout.size < 8) {
      // Bandwidths of the time model of 2.27.5 for 5, 6 and 7 ranks: NVLS 250, 250, 233 against RING 225, 216, 210 GB/s on
      // compute capability 9; 375, 450, 525 against 450, 432, 420 on 10. Later releases weigh NVLS differently.
      const likely = topology.computeCapability >= 100 && layout.size === 5 ? 'ring' : 'nvls';
      return uncertain(
        ['ring', 'nvls'],
        size >= 8 * MiB ? likely : 'ring',
        'NVLS or RING: close to each other for 5 to 7 ranks',
      );
    }
    if (size >= 8 * MiB) return certain('nvls', 'NVLS has the highest bandwidth from 8 ranks on');
    return uncertain(
      ['ring', 'nvls'],
      size >= (topology.computeCapability >= 100 ? 2.3e6 : 1.1e6) ? 'nvls' : 'ring',
      'NVLS or RING: the crossing is near 1.1 MB (2.3 MB on Blackwell) and moves with the release',
    );
  }
  if (size <= SMALL) return certain('tree', 'TREE has the least latency across nodes');
  if (counts.nvls > 0) {
    if (size >= 256 * MiB) return certain('nvls_tree', 'NVLS_TREE has the highest bandwidth');
    return uncertain(
      ['tree', 'ring', 'nvls_tree'],
      size >= 4 * MiB ? 'nvls_tree' : 'tree',
      'TREE, RING or NVLS_TREE: the crossings are not known',
    );
  }
  const likely = size >= 64 * MiB && layout.domains.length <= 2 ? 'ring' : 'tree';
  return uncertain(
    ['tree', 'ring'],
    likely,
    `TREE or RING on ${topology.name}: the crossing is not known`,
  );
}

function gatherChoice({ bytes, situation }: AlgorithmQuestion): AlgorithmChoice {
  const { layout, release, environment } = situation;
  const pat = environment.pat ?? (release.pat && layout.ranksPerDomain === 1);
  if (!pat || !release.pat || layout.domains.length === 1) {
    return certain('ring', 'RING; NVLS only with registered buffers');
  }
  if (bytes >= 256 * MiB) return certain('ring', 'RING has the highest bandwidth');
  return uncertain(
    ['ring', 'pat'],
    bytes > SMALL || layout.size >= 16 ? 'pat' : 'ring',
    'PAT or RING: the crossing is not known',
  );
}

/** NCCL_ALGO narrows the choice; where it leaves nothing of it, the first allowed algorithm is taken. */
function restrict(question: AlgorithmQuestion, choice: AlgorithmChoice): AlgorithmChoice {
  const written = question.situation.environment.algorithms;
  if (written === undefined) return choice;
  const allowed = allowedAlgorithms(written, question.collective);
  if (allowed === undefined) return choice;
  const candidates = choice.candidates.filter((algorithm) => allowed.has(algorithm));
  if (candidates.length > 0) {
    const likely = candidates.includes(choice.likely) ? choice.likely : candidates[0];
    return { ...choice, candidates, likely };
  }
  const usable = [...allowed].filter((algorithm) => isUsable(algorithm, question));
  if (usable.length === 0)
    return certain('ring', `NCCL_ALGO=${written} leaves nothing that can run`, 'assumed');
  return usable.length === 1
    ? certain(usable[0], `NCCL_ALGO=${written}`)
    : uncertain(usable, usable[0], `NCCL_ALGO=${written}`);
}

function isUsable(
  algorithm: Algorithm,
  { situation, counts, collective }: AlgorithmQuestion,
): boolean {
  const manyDomains = situation.layout.domains.length > 1;
  const allReduce = collective === 'all_reduce' || collective === 'barrier';
  if (algorithm === 'ring') return true;
  if (algorithm === 'tree') return allReduce;
  if (algorithm === 'nvls') return counts.nvls > 0 && !manyDomains;
  if (algorithm === 'nvls_tree') return counts.nvls > 0 && manyDomains && allReduce;
  if (algorithm === 'collnet') return situation.environment.collNet;
  return algorithm === 'pat' && situation.release.pat && !allReduce;
}

const ALGORITHM_NAMES: Readonly<Record<string, Algorithm>> = {
  ring: 'ring',
  tree: 'tree',
  nvls: 'nvls',
  nvlstree: 'nvls_tree',
  pat: 'pat',
  collnetdirect: 'collnet',
  collnetchain: 'collnet',
  collnet: 'collnet',
};

const FUNCTION_NAMES: Readonly<Record<string, readonly Collective[]>> = {
  broadcast: ['broadcast'],
  reduce: ['reduce'],
  allgather: ['all_gather'],
  reducescatter: ['reduce_scatter'],
  allreduce: ['all_reduce', 'barrier'],
};

/**
 * The algorithms that NCCL_ALGO leaves for a collective; undefined when it says nothing about it. The syntax is that of
 * src/graph/tuning.cc, parseList: `Ring,Tree`, `^NVLS`, `allreduce:tree;broadcast:ring`.
 * @throws UserError `bad-nccl-variable` for a name that NCCL would refuse.
 */
export function allowedAlgorithms(
  written: string,
  collective: Collective,
): ReadonlySet<Algorithm> | undefined {
  let result: ReadonlySet<Algorithm> | undefined;
  for (const part of written.split(';').filter((item) => item.trim() !== '')) {
    const colon = part.indexOf(':');
    if (colon >= 0) {
      const name = part.slice(0, colon).trim().toLowerCase();
      const functions = FUNCTION_NAMES[name];
      if (!functions) throw badAlgorithm(written, name);
      if (!functions.includes(collective)) continue;
    }
    result = parseAlgorithms(part.slice(colon + 1), written);
  }
  return result;
}

function parseAlgorithms(list: string, written: string): ReadonlySet<Algorithm> {
  const negated = list.trim().startsWith('^');
  const named = new Set<Algorithm>();
  for (const item of list.trim().replace(/^\^/, '').split(',')) {
    const algorithm = ALGORITHM_NAMES[item.trim().toLowerCase().replace(/[_+ ]/g, '')];
    if (!algorithm) throw badAlgorithm(written, item.trim());
    named.add(algorithm);
  }
  if (!negated) return named;
  return new Set(Object.values(ALGORITHM_NAMES).filter((algorithm) => !named.has(algorithm)));
}

function badAlgorithm(written: string, name: string): UserError {
  const known = Object.keys(ALGORITHM_NAMES).join(', ');
  return new UserError(
    'bad-nccl-variable',
    `NCCL_ALGO=${written}: "${name}" is not known; known: ${known}`,
  );
}

/** @throws UserError `unknown-collective` that lists the known ones. */
export function parseCollective(text: string): Collective {
  const found = COLLECTIVES.find((collective) => collective === text);
  if (found) return found;
  throw new UserError(
    'unknown-collective',
    `"${text}" is not a collective; known: ${COLLECTIVES.join(', ')}`,
  );
}

/** Spellings of c10d and of its functional collectives, beside our own. */
const SPELLINGS: Readonly<Record<string, Collective>> = {
  allreduce: 'all_reduce',
  allreduce_coalesced: 'all_reduce',
  all_reduce_coalesced: 'all_reduce',
  allgather: 'all_gather',
  allgather_base: 'all_gather',
  allgather_coalesced: 'all_gather',
  all_gather_into_tensor: 'all_gather',
  all_gather_into_tensor_coalesced: 'all_gather',
  allgather_into_tensor_coalesced: 'all_gather',
  reduce_scatter_base: 'reduce_scatter',
  reduce_scatter_tensor: 'reduce_scatter',
  reduce_scatter_tensor_coalesced: 'reduce_scatter',
  alltoall: 'all_to_all',
  alltoall_base: 'all_to_all',
  all_to_all_single: 'all_to_all',
  isend: 'send',
  irecv: 'recv',
};

/** The collective behind a name as a trace spells it; undefined for one that is not known. */
export function collectiveOf(kind: string): Collective | undefined {
  const name = kind
    .toLowerCase()
    .replace(/^_+|_+$/g, '')
    .replace(/^(batch|coalesced)_/, '');
  return COLLECTIVES.find((collective) => collective === name) ?? SPELLINGS[name];
}
