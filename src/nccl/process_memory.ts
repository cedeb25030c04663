// What NCCL costs a process once, whatever its communicators: the code of its kernels, and the local memory (stacks) that the
// driver sets aside for them.
//
// Local memory is the driver's: one pool a context, sized for the largest stack of any kernel launched so far on every thread
// that the GPU can hold, and never shrunk. NVIDIA's engineers give threads per multiprocessor x multiprocessors x bytes a
// thread (forums.developer.nvidia.com, local-memory-management/289339). With the stack rounded up to 16 bytes and the
// 1024 bytes that a context starts with taken off, the formula gives 175.75 MiB for the all-reduce kernel on a GB200, where
// 176 MiB were measured (elfiegg/memTracker, experiments/gb200_calibration.json).

import { type Band, exactly } from '../base/band.ts';
import { MiB, roundUp } from '../base/bytes.ts';
import type { Evidence } from '../base/evidence.ts';
import type { Collective } from './algorithm.ts';
import type { MemoryTerm } from './term.ts';

/** The properties of a GPU that local memory depends on. `GpuModel` of src/device/gpus.ts is one. */
export interface GpuProperties {
  readonly name: string;
  readonly capability: readonly [number, number];
  readonly multiprocessors: number;
  readonly threadsPerMultiprocessor: number;
}

/** Bytes of stack that a context provides for before any kernel asks for more. */
export const CONTEXT_STACK = 1024;

/** Bytes of local memory that a kernel with `stack` bytes a thread needs beyond what the context has. */
export function localMemoryBytes(stack: number, gpu: GpuProperties): number {
  const beyond = Math.max(0, roundUp(stack, 16) - CONTEXT_STACK);
  return roundUp(beyond * gpu.threadsPerMultiprocessor * gpu.multiprocessors, 2 * MiB);
}

/** Groups of NCCL kernels with one stack size each. */
export type KernelFamily = 'collective' | 'tree' | 'point_to_point';

interface KernelFacts {
  /** Stack bytes a thread by family (cuobjdump --dump-resource-usage). */
  readonly stack: Readonly<Record<KernelFamily, number>>;
  /** Bytes of kernel code that the first communicator of a process makes the driver load. */
  readonly module: Band;
  readonly moduleEvidence: Evidence;
}

/**
 * NCCL 2.30.7 by major compute capability. The code size lies between the .text of the linked kernels and the size of the
 * cubin files with what initialisation adds; for Blackwell 172 MiB were measured (418 at the creation of a communicator of
 * 246). Stacks of sm80 are the range of its kernels: 1248 to 1512.
 */
const KERNELS: Readonly<Record<number, KernelFacts>> = {
  8: {
    stack: { collective: 1328, tree: 1512, point_to_point: 1512 },
    module: { low: 44 * MiB, likely: 49 * MiB, high: 80 * MiB },
    moduleEvidence: 'source',
  },
  9: {
    stack: { collective: 1728, tree: 1848, point_to_point: 1968 },
    module: { low: 98 * MiB, likely: 124 * MiB, high: 150 * MiB },
    moduleEvidence: 'source',
  },
  10: {
    stack: { collective: 1608, tree: 1720, point_to_point: 1776 },
    module: { low: 100 * MiB, likely: 172 * MiB, high: 172 * MiB },
    moduleEvidence: 'calibrated',
  },
};

const KERNEL_VERSION = '2.30.7';

export function kernelFamily(collective: Collective, usesTree: boolean): KernelFamily {
  if (['all_to_all', 'gather', 'scatter', 'send', 'recv'].includes(collective))
    return 'point_to_point';
  return usesTree ? 'tree' : 'collective';
}

/** Stack bytes of a kernel family on a GPU, or undefined where no NCCL binary for it was looked at. */
export function kernelStack(family: KernelFamily, gpu: GpuProperties): number | undefined {
  return KERNELS[gpu.capability[0]]?.stack[family];
}

/** Code loaded by the first communicator of a process (src/enqueue.cc, ncclInitKernelsForDevice touches every kernel). */
export function moduleTerm(gpu: GpuProperties, version: string): MemoryTerm {
  const facts = KERNELS[gpu.capability[0]];
  const known = facts !== undefined && version === KERNEL_VERSION;
  const widest = { low: 0, likely: 100 * MiB, high: 172 * MiB };
  return {
    name: 'NCCL kernel code',
    bytes: facts?.module ?? widest,
    lifetime: 'process',
    evidence: known ? facts.moduleEvidence : 'assumed',
    source: `NCCL v${KERNEL_VERSION}-1 src/enqueue.cc ncclInitKernelsForDevice; code size of the binary for compute capability ${gpu.capability.join('.')}`,
    omits:
      'streams, events and memory pools that initialisation creates, where they were not measured',
  };
}

/** Local memory that a kernel family adds when the context already provides `stackSoFar` bytes a thread. */
export function localMemoryTerm(
  family: KernelFamily,
  gpu: GpuProperties,
  version: string,
  stackSoFar: number = CONTEXT_STACK,
): MemoryTerm {
  const stack = kernelStack(family, gpu);
  const held = localMemoryBytes(stackSoFar, gpu);
  const added = (bytes: number) => Math.max(0, localMemoryBytes(bytes, gpu) - held);
  // Where the binary was not looked at: between no stack beyond the context's and the largest seen.
  const bytes =
    stack === undefined
      ? { low: 0, likely: added(1600), high: added(1968) }
      : exactly(added(stack));
  return {
    name: 'NCCL kernel local memory',
    bytes,
    lifetime: 'process',
    evidence: stack !== undefined && version === KERNEL_VERSION ? 'source' : 'assumed',
    source: `driver: stack x threads x multiprocessors of ${gpu.name}; stacks of NCCL v${KERNEL_VERSION}-1 kernels`,
    omits: 'kernels of other libraries with a larger stack',
  };
}
