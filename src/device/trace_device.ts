// The GPU that a trace is replayed on: what the caller asks for, and for the rest what the trace says of its own job.

import type { Band } from '../base/band.ts';
import { type Bytes, bytes, TiB } from '../base/bytes.ts';
import type { Component } from '../external/component.ts';
import type { NcclSettings } from '../nccl/communicator.ts';
import { readEnvironment } from '../nccl/environment.ts';
import { DEFAULT_RELEASE, findRelease } from '../nccl/release.ts';
import { findTopology, TOPOLOGY_PRESETS, type Topology } from '../nccl/topology.ts';
import type { TraceHeader } from '../trace/file_format.ts';
import { GpuDevice } from './gpu_device.ts';
import { capacityOf, type DeviceCapacity, type GpuModel, parseCapacity } from './gpus.ts';

/**
 * Capacity of a device that is never full, for `ReplayTarget.usableBytes`. Finite, because the address range of an expandable
 * segment is a multiple of it.
 */
export const NEVER_FULL = 4 * TiB;

export interface ReplayTarget {
  /** A GPU's name or a size. Absent: the GPU that the trace was made for. */
  readonly gpu?: string | undefined;
  /** PYTORCH_ALLOC_CONF. Absent: what the job itself set. */
  readonly allocConf?: string | undefined;
  /** Absent: what the trace says, else the version that comes with the pinned PyTorch. */
  readonly ncclVersion?: string | undefined;
  /** A preset or a file. Absent: the preset of the GPU, where there is one. */
  readonly topology?: string | undefined;
  /** NCCL_* variables. Absent: those of the traced job. */
  readonly environment?: Readonly<Record<string, string>> | undefined;
  readonly components?: readonly Component[] | undefined;
  /** Which figure of uncertain memory counts against the capacity. */
  readonly bound?: keyof Band | undefined;
  /** Overrides the bytes of the capacity, not what the GPU is: for replays on a device that is never full. */
  readonly usableBytes?: number | undefined;
}

export interface TraceDevice {
  readonly device: GpuDevice;
  readonly capacity: DeviceCapacity;
  readonly nccl: NcclSettings | undefined;
  /** What was assumed or is not modelled, in sentences. */
  readonly notes: readonly string[];
}

/**
 * A fresh device for one replay of a trace with this header.
 * @throws UserError for a GPU, allocator setting, NCCL version, topology or variable that is not known.
 */
export function deviceForTrace(
  header: TraceHeader,
  target: ReplayTarget = {},
  index = 0,
): TraceDevice {
  const notes: string[] = [];
  const capacity = capacityFor(header, target);
  const holdsNccl = target.components?.some(({ includes }) => includes?.includes('nccl')) ?? false;
  const nccl = holdsNccl ? undefined : ncclFor(header, target, capacity.gpu, notes);
  const device = new GpuDevice({
    capacity:
      target.usableBytes === undefined
        ? capacity
        : { ...capacity, usableBytes: target.usableBytes as Bytes },
    index,
    allocConf: target.allocConf,
    nccl,
    rank: header.rank,
    components: target.components,
    bound: target.bound,
  });
  return { device, capacity, nccl, notes };
}

function capacityFor(header: TraceHeader, target: ReplayTarget): DeviceCapacity {
  if (target.gpu !== undefined) return parseCapacity(target.gpu);
  try {
    return parseCapacity(header.gpu.id);
  } catch {
    return { ...capacityOf(bytes(header.gpu.total_memory)), source: 'the trace' };
  }
}

function ncclFor(
  header: TraceHeader,
  target: ReplayTarget,
  gpu: GpuModel | undefined,
  notes: string[],
): NcclSettings | undefined {
  const asked = target.ncclVersion ?? declaredNccl(header) ?? DEFAULT_RELEASE.version;
  const choice = findRelease(asked);
  if (choice.note !== undefined) notes.push(`${choice.note}.`);
  let topology: Topology | undefined;
  if (target.topology !== undefined) topology = findTopology(target.topology);
  else {
    topology = presetOf(gpu);
    if (topology === undefined) {
      notes.push(
        'No topology is known for this GPU: memory of communicators is unknown. Give one with --topology.',
      );
    } else if (header.world > 1) {
      notes.push(
        `The topology is assumed to be ${topology.name}; say so or another with --topology.`,
      );
    }
  }
  if (topology === undefined) return undefined;
  const environment = readEnvironment(target.environment ?? header.environment, choice.release);
  if (environment.honoured.length > 0) {
    notes.push(`NCCL variables of the job that change memory: ${environment.honoured.join(', ')}.`);
  }
  if (environment.notModelled.length > 0) {
    notes.push(`Not modelled: ${environment.notModelled.join(', ')}.`);
  }
  const placement = { gpusPerNode: header.gpus_per_node };
  return { release: choice.release, topology, environment, placement };
}

/** The NCCL version of the declared run identity, if there is one. */
export function declaredNccl(header: TraceHeader): string | undefined {
  const stated = header.target?.nccl;
  const value =
    typeof stated === 'object' && stated !== null && 'value' in stated ? stated.value : stated;
  return typeof value === 'string' ? value : undefined;
}

/** The preset that is built from this GPU, or from one of the same compute capability behind NVSwitch. */
function presetOf(gpu: GpuModel | undefined): Topology | undefined {
  if (gpu === undefined) return undefined;
  const [major, minor] = gpu.capability;
  return (
    TOPOLOGY_PRESETS.find((topology) => topology.gpu === gpu.name) ??
    TOPOLOGY_PRESETS.find(
      (topology) => topology.computeCapability === major * 10 + minor && topology.cpu === 'x86',
    )
  );
}
