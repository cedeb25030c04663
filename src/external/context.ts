// The CUDA context of a process: what the driver takes on a GPU before the first allocation, with the libraries that PyTorch
// loads. Never one universal number: a band by GPU, from the local memory that the context provides for every resident
// thread plus what was measured for the driver and for PyTorch's kernels.

import type { Band } from '../base/band.ts';
import { MiB } from '../base/bytes.ts';
import type { Evidence } from '../base/evidence.ts';
import { CONTEXT_STACK, type GpuProperties } from '../nccl/process_memory.ts';

export interface ContextEstimate {
  readonly bytes: Band;
  readonly evidence: Evidence;
  readonly source: string;
  readonly omits: string;
}

/** Local memory for every thread that the GPU can hold, at the stack a context starts with: 216 MiB on an A100. */
export function contextLocalMemory(gpu: GpuProperties): number {
  return CONTEXT_STACK * gpu.threadsPerMultiprocessor * gpu.multiprocessors;
}

/** Contexts that were measured: driver-used minus reserved of a process with one tensor and no communicator. */
const MEASURED: Readonly<Record<string, Omit<ContextEstimate, 'omits'>>> = {
  'gb200-186gb': {
    // 691.8 is a bare context (another process's on the same GPU), 800.4 one in which PyTorch ran kernels.
    bytes: { low: 691.8125 * MiB, likely: 800.375 * MiB, high: 800.375 * MiB },
    evidence: 'calibrated',
    source:
      'elfiegg/memTracker, experiments/gb200_calibration.json: driver-used minus reserved before any communicator, driver 615.74, CUDA 13.0',
  },
  'rtx-6000-ada-48gb': {
    bytes: { low: 426 * MiB, likely: 426 * MiB, high: 546 * MiB },
    evidence: 'calibrated',
    source: 'unslothai/unsloth-zoo#1053: 426 MiB, torch 2.10+cu130',
  },
};

/**
 * Driver and library set beyond local memory, where it was not measured: 200 to 400 MiB for the driver, and up to 120 MiB of
 * loaded kernels. Between lazy-loading contexts of 300 to 430 MiB on GPUs with 150 to 220 MiB of local memory
 * (pytorch/pytorch#107667, unsloth#6718) and the GB200's 496 MiB beyond its 304.
 */
const BEYOND_LOCAL: Band = { low: 120 * MiB, likely: 300 * MiB, high: 520 * MiB };

const OMITS =
  'cuBLAS and cuBLASLt workspaces (they are in the caching allocator), cuDNN and Triton modules loaded later, contexts of other processes on the GPU';

/** Band for a process that runs PyTorch with lazy module loading (CUDA 11.7 or newer). */
export function contextEstimate(gpu: GpuProperties): ContextEstimate {
  const measured = MEASURED[gpu.name];
  if (measured) return { ...measured, omits: OMITS };
  const local = contextLocalMemory(gpu);
  return {
    bytes: {
      low: local + BEYOND_LOCAL.low,
      likely: local + BEYOND_LOCAL.likely,
      high: local + BEYOND_LOCAL.high,
    },
    evidence: 'assumed',
    source: `local memory of ${gpu.name} (${CONTEXT_STACK} bytes x resident threads) and a band for the driver; not measured on this GPU`,
    omits: OMITS,
  };
}
