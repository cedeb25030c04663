// What a node looks like to NCCL: GPUs, NVLink domain, network cards. Named presets, and a file format for others. Node
// count and the placement of ranks come from the job.

import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { MiB } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';

const size = z.int().positive();

/**
 * A topology file: JSON of this shape. Bandwidths in GB/s (10^9 bytes a second) as NCCL's own search uses them: a 400 Gb/s
 * card counts 48.
 */
export const topologySchema = z.strictObject({
  name: z.string().min(1),
  /** Name of the GPU (see `memtracker gpus`); used for process-level memory. */
  gpu: z.string().min(1),
  /** Compute capability times ten: 80, 90, 100, 103, 120. */
  computeCapability: z.int().min(50).max(200),
  cpu: z.enum(['x86', 'arm']).default('x86'),
  gpusPerNode: size,
  /** Absent: no NVLink. */
  nvlink: z
    .strictObject({
      /** NVLinks of one GPU that lead to any given peer: all of them behind NVSwitch. */
      links: size,
      /** GPUs of one NVLink domain; more than `gpusPerNode` for multi-node NVLink. */
      domainGpus: size,
      /** Ring channels of a communicator inside one domain, as NCCL logs them ("24 coll channels"). */
      ringChannels: size,
      /** NVLink SHARP (NVLS) in the switches. */
      nvls: z.boolean(),
    })
    .optional(),
  /** Without NVLink: GPUs reach each other over PCIe (true) or through host memory (false). Absent: not known. */
  pciePeerToPeer: z.boolean().optional(),
  network: z.strictObject({
    cardsPerNode: z.int().min(0),
    /** Of one card. */
    bandwidth: z.number().positive(),
    /** The card writes GPU memory (GPUDirect RDMA); without it NET buffers are host memory. */
    gpuDirect: z.boolean(),
  }),
  /**
   * What cuMulticastGetGranularity calls recommended, for NCCL 2.19 to 2.25, which round NVLS buffers up to it. 512 MiB is
   * what large multicast mappings use; one published log shows 2 MiB ("mcgran 2097152").
   */
  multicastGranularity: z
    .strictObject({ low: size, likely: size, high: size })
    .default({ low: 2 * MiB, likely: 512 * MiB, high: 512 * MiB }),
  /** Where the channel counts were read or measured. */
  source: z.string().min(1),
});

export type Topology = z.infer<typeof topologySchema>;

const INFINIBAND_200 = { bandwidth: 24, gpuDirect: true } as const;
const INFINIBAND_400 = { bandwidth: 48, gpuDirect: true } as const;
const INFINIBAND_800 = { bandwidth: 96, gpuDirect: true } as const;
/** NVLink bandwidth by compute capability: src/graph/topo.h (20, 20.6 and 40.1 GB/s a link). */
const SEARCH =
  'ring search of src/graph/search.cc: channels x speed within the NVLink bandwidth, doubled';

export const TOPOLOGY_PRESETS: readonly Topology[] = [
  preset({
    name: 'dgx-a100',
    gpu: 'a100-80gb',
    computeCapability: 80,
    gpusPerNode: 8,
    nvlink: { links: 12, domainGpus: 8, ringChannels: 24, nvls: false },
    network: { cardsPerNode: 8, ...INFINIBAND_200 },
    source: `${SEARCH}: 12 links, 12 x 20 GB/s`,
  }),
  preset({
    name: 'dgx-h100',
    gpu: 'h100-80gb',
    computeCapability: 90,
    gpusPerNode: 8,
    nvlink: { links: 18, domainGpus: 8, ringChannels: 24, nvls: true },
    network: { cardsPerNode: 8, ...INFINIBAND_400 },
    source: `${SEARCH}: 18 links, 12 x 30 GB/s; the same 24 channels in published p5.48xlarge logs`,
  }),
  preset({
    name: 'hgx-h200',
    gpu: 'h200-141gb',
    computeCapability: 90,
    gpusPerNode: 8,
    nvlink: { links: 18, domainGpus: 8, ringChannels: 24, nvls: true },
    network: { cardsPerNode: 8, ...INFINIBAND_400 },
    source: `${SEARCH}: NVLink as H100`,
  }),
  preset({
    name: 'hgx-b200',
    gpu: 'b200-192gb',
    computeCapability: 100,
    gpusPerNode: 8,
    nvlink: { links: 18, domainGpus: 8, ringChannels: 32, nvls: true },
    network: { cardsPerNode: 8, ...INFINIBAND_400 },
    source: `${SEARCH}: 18 links, 16 x 45 GB/s`,
  }),
  preset({
    name: 'hgx-b300',
    gpu: 'b300-288gb',
    computeCapability: 103,
    gpusPerNode: 8,
    nvlink: { links: 18, domainGpus: 8, ringChannels: 32, nvls: true },
    network: { cardsPerNode: 8, ...INFINIBAND_800 },
    source: `${SEARCH}: NVLink as B200`,
  }),
  preset({
    name: 'gb200-nvl72',
    gpu: 'gb200-186gb',
    computeCapability: 100,
    cpu: 'arm',
    gpusPerNode: 4,
    nvlink: { links: 18, domainGpus: 72, ringChannels: 32, nvls: true },
    network: { cardsPerNode: 4, ...INFINIBAND_400 },
    source: `${SEARCH}: NVLink as B200; measured on two GB200 (elfiegg/memTracker)`,
  }),
  preset({
    name: 'gb300-nvl72',
    gpu: 'gb300-288gb',
    computeCapability: 103,
    cpu: 'arm',
    gpusPerNode: 4,
    nvlink: { links: 18, domainGpus: 72, ringChannels: 32, nvls: true },
    network: { cardsPerNode: 4, ...INFINIBAND_800 },
    source: `${SEARCH}: NVLink as B200`,
  }),
  preset({
    name: 'l40s-pcie',
    gpu: 'l40s-48gb',
    computeCapability: 89,
    gpusPerNode: 8,
    pciePeerToPeer: true,
    network: { cardsPerNode: 1, ...INFINIBAND_200 },
    source: 'two channels found by the search between two GPUs on PCIe, doubled',
  }),
  preset({
    name: 'rtx-pcie',
    gpu: 'rtx-4090-24gb',
    computeCapability: 89,
    gpusPerNode: 8,
    // The GeForce driver offers no peer access.
    pciePeerToPeer: false,
    network: { cardsPerNode: 1, bandwidth: 12, gpuDirect: false },
    source:
      'two channels found by the search between two GPUs on PCIe, doubled; host memory between them',
  }),
];

function preset(raw: z.input<typeof topologySchema>): Topology {
  return topologySchema.parse(raw);
}

export function topologyNames(): string[] {
  return TOPOLOGY_PRESETS.map((topology) => topology.name);
}

/**
 * A preset by its name, or a topology file by its path (whatever contains a `/` or ends in `.json`).
 * @throws UserError `unknown-topology` that lists the presets; `bad-topology` for a file that is not of the format.
 */
export function findTopology(nameOrPath: string): Topology {
  if (nameOrPath.includes('/') || nameOrPath.endsWith('.json')) return readTopology(nameOrPath);
  const found = TOPOLOGY_PRESETS.find((topology) => topology.name === nameOrPath.toLowerCase());
  if (found) return found;
  throw new UserError(
    'unknown-topology',
    `"${nameOrPath}" is not a known topology. Known: ${topologyNames().join(', ')}; or the path of a topology file (.json).`,
  );
}

function readTopology(path: string): Topology {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (cause) {
    throw new UserError('bad-topology', `cannot read ${path}: ${(cause as Error).message}`, {
      cause,
    });
  }
  let raw: unknown;
  try {
    raw = JSON.parse(text);
  } catch (cause) {
    throw new UserError('bad-topology', `${path} is not JSON: ${(cause as Error).message}`, {
      cause,
    });
  }
  const parsed = topologySchema.safeParse(raw);
  if (parsed.success) return parsed.data;
  throw new UserError(
    'bad-topology',
    `${path} is not a topology:\n${z.prettifyError(parsed.error)}`,
  );
}

/** Where the global ranks of a job sit. Ranks fill node after node, as torchrun numbers them. */
export interface Placement {
  readonly gpusPerNode: number;
}

/** The NVLink domain of a global rank: its node, or its clique under multi-node NVLink. */
export function domainOf(
  rank: number,
  topology: Topology,
  placement: Placement,
  multiNodeNvlink: boolean,
): number {
  const node = Math.floor(rank / placement.gpusPerNode);
  const domainGpus = topology.nvlink?.domainGpus ?? 0;
  const nodesPerDomain = multiNodeNvlink
    ? Math.max(1, Math.floor(domainGpus / topology.gpusPerNode))
    : 1;
  return Math.floor(node / nodesPerDomain);
}
