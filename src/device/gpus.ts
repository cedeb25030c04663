// Named GPUs: what a process can use of each, and the properties that the memory model and the fake CUDA runtime need.
//
// `usableBytes` is what `cudaMemGetInfo` calls total (PyTorch: `total_memory`, and "total capacity" in its OOM message).
// It is less than the number on the box: ECC, page tables and firmware are gone before a process starts, and how much
// is gone depends on the driver. Each row says where its figure was read; `otherReadings` keeps the figures that other
// drivers gave, so that a person whose GPU says something else can pass the plain number of bytes.

import { type Bytes, bytes, formatBytes, GiB, MiB, parseBytes } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import type { Evidence } from '../base/evidence.ts';

export interface GpuModel {
  /** The name on our command line. */
  readonly name: string;
  /** Other spellings accepted on the command line. */
  readonly aliases: readonly string[];
  /** What `torch.cuda.get_device_name()` says. */
  readonly deviceName: string;
  /** Compute capability, major and minor. */
  readonly capability: readonly [number, number];
  /** Streaming multiprocessors that a kernel can use. */
  readonly multiprocessors: number;
  /** Resident threads per multiprocessor (CUDA C++ Programming Guide, table of compute capabilities). */
  readonly threadsPerMultiprocessor: number;
  readonly usableBytes: Bytes;
  readonly evidence: Evidence;
  /** Where `usableBytes` was read. */
  readonly source: string;
  /** What other drivers reported for the same part. Empty when none was found. */
  readonly otherReadings: readonly string[];
}

/** Capacity of a device: a named GPU, or only a number of bytes. */
export interface DeviceCapacity {
  /** The name given, or the size in words. */
  readonly name: string;
  readonly usableBytes: Bytes;
  readonly evidence: Evidence;
  readonly source: string;
  /** Absent when only a number of bytes was given. */
  readonly gpu?: GpuModel;
}

/** GiB as a log prints it (two decimals), to whole MiB: no more digits than were read. */
function gib(value: number): Bytes {
  return bytes(Math.floor((value * GiB) / MiB) * MiB);
}

/** MiB as `torch.cuda.get_device_properties` prints it (bytes / 2^20, rounded down). */
function mib(value: number): Bytes {
  return bytes(value * MiB);
}

export const GPU_MODELS: readonly GpuModel[] = [
  {
    name: 'a100-40gb',
    aliases: ['a100-sxm4-40gb'],
    deviceName: 'NVIDIA A100-SXM4-40GB',
    capability: [8, 0],
    multiprocessors: 108,
    threadsPerMultiprocessor: 2048,
    usableBytes: bytes(42_298_834_944),
    evidence: 'calibrated',
    source: 'deviceQuery, driver CUDA 12.2 (bottlerocket-os/bottlerocket#3873)',
    otherReadings: ['39.49 GiB', '39.50 GiB', '39.56 GiB (PyTorch OOM messages, other drivers)'],
  },
  {
    name: 'a100-80gb',
    aliases: ['a100', 'a100-sxm4-80gb'],
    deviceName: 'NVIDIA A100-SXM4-80GB',
    capability: [8, 0],
    multiprocessors: 108,
    threadsPerMultiprocessor: 2048,
    usableBytes: mib(81_049),
    evidence: 'calibrated',
    source:
      'device query, driver CUDA 12.3 (ekondis/mixbench#47); PyTorch OOM text 79.15 GiB (pytorch/pytorch#111363)',
    otherReadings: ['79.14 GiB', '79.25 GiB'],
  },
  {
    name: 'h100-80gb',
    aliases: ['h100', 'h100-sxm', 'h100-80gb-hbm3'],
    deviceName: 'NVIDIA H100 80GB HBM3',
    capability: [9, 0],
    multiprocessors: 132,
    threadsPerMultiprocessor: 2048,
    usableBytes: mib(81_082),
    evidence: 'calibrated',
    source:
      'torch.cuda.get_device_properties (torch 2.0.1+cu118); 79.18 GiB in TorchTitan logs of 2026',
    otherReadings: ['79.11 GiB (vllm-project/vllm#27508)', '79.19 GiB', '79.21 GiB', '79.25 GiB'],
  },
  {
    name: 'h100-96gb',
    aliases: ['h100-96gb-hbm2e'],
    deviceName: 'NVIDIA H100',
    capability: [9, 0],
    multiprocessors: 132,
    threadsPerMultiprocessor: 2048,
    usableBytes: gib(94.99),
    evidence: 'calibrated',
    source: 'TorchTitan log of the published H100 96 GB runs: 47.38 GiB printed as 49.88 %',
    otherReadings: [],
  },
  {
    name: 'h200-141gb',
    aliases: ['h200', 'h200-sxm'],
    deviceName: 'NVIDIA H200',
    capability: [9, 0],
    multiprocessors: 132,
    threadsPerMultiprocessor: 2048,
    usableBytes: mib(143_156),
    evidence: 'calibrated',
    source: 'torch.cuda.get_device_properties; 139.80 GiB in PyTorch OOM messages',
    otherReadings: ['139.72 GiB', '139.81 GiB', '139.83 GiB (TorchTitan log, February 2025)'],
  },
  {
    name: 'b200-192gb',
    aliases: ['b200', 'b200-180gb'],
    deviceName: 'NVIDIA B200',
    capability: [10, 0],
    multiprocessors: 148,
    threadsPerMultiprocessor: 2048,
    usableBytes: mib(182_631),
    evidence: 'calibrated',
    source: 'torch.cuda.get_device_properties; 178.35 GiB in PyTorch OOM messages',
    otherReadings: ['178.36 GiB (182,642 MiB)'],
  },
  {
    name: 'gb200-186gb',
    aliases: ['gb200'],
    deviceName: 'NVIDIA GB200',
    capability: [10, 0],
    multiprocessors: 152,
    threadsPerMultiprocessor: 2048,
    usableBytes: bytes(197_940_150_272),
    evidence: 'calibrated',
    source:
      'cudaMemGetInfo, driver 615.74 (elfiegg/memTracker, experiments/gb200_calibration.json)',
    otherReadings: [
      '184.31 GiB (OOM messages of the same project)',
      '187.28 GiB (TorchTitan log, May 2026)',
    ],
  },
  {
    name: 'b300-288gb',
    aliases: ['b300'],
    deviceName: 'NVIDIA B300 SXM6 AC',
    capability: [10, 3],
    multiprocessors: 148,
    threadsPerMultiprocessor: 2048,
    usableBytes: gib(267.69),
    evidence: 'calibrated',
    source:
      'PyTorch OOM messages on B300 (267.69 GiB, two unrelated logs); SM count assumed equal to B200',
    otherReadings: [],
  },
  {
    name: 'gb300-288gb',
    aliases: ['gb300'],
    deviceName: 'NVIDIA GB300',
    capability: [10, 3],
    multiprocessors: 152,
    threadsPerMultiprocessor: 2048,
    usableBytes: gib(276.5),
    evidence: 'calibrated',
    source:
      'TorchTitan log and PyTorch OOM messages on GB300 (276.50 GiB); SM count assumed equal to GB200',
    otherReadings: [],
  },
  {
    name: 'l40s-48gb',
    aliases: ['l40s'],
    deviceName: 'NVIDIA L40S',
    capability: [8, 9],
    multiprocessors: 142,
    threadsPerMultiprocessor: 1536,
    usableBytes: gib(44.39),
    evidence: 'calibrated',
    source: 'PyTorch OOM messages on L40S (44.39 GiB)',
    otherReadings: ['44.34 GiB', '44.40 GiB', '44.42 GiB', '44.52 GiB (45,589 MiB, older driver)'],
  },
  {
    name: 'a10g-24gb',
    aliases: ['a10g'],
    deviceName: 'NVIDIA A10G',
    capability: [8, 6],
    multiprocessors: 80,
    threadsPerMultiprocessor: 1536,
    usableBytes: mib(22_723),
    evidence: 'calibrated',
    source: 'torch.cuda.get_device_properties',
    otherReadings: [],
  },
  {
    name: 'rtx-4090-24gb',
    aliases: ['rtx-4090'],
    deviceName: 'NVIDIA GeForce RTX 4090',
    capability: [8, 9],
    multiprocessors: 128,
    threadsPerMultiprocessor: 1536,
    usableBytes: gib(23.52),
    evidence: 'calibrated',
    source: 'PyTorch OOM messages of 2025 and 2026 (23.52 GiB)',
    otherReadings: [
      '23.53 GiB',
      '23.68 GiB (zai-org/CogVideo#36)',
      '23.99 GiB (24,563 MiB, Windows)',
    ],
  },
  {
    name: 'rtx-5090-32gb',
    aliases: ['rtx-5090'],
    deviceName: 'NVIDIA GeForce RTX 5090',
    capability: [12, 0],
    multiprocessors: 170,
    threadsPerMultiprocessor: 1536,
    usableBytes: gib(31.36),
    evidence: 'calibrated',
    source: 'PyTorch OOM messages (31.36 GiB)',
    otherReadings: ['31.37 GiB', '31.84 GiB (Windows)'],
  },
  {
    name: 'rtx-6000-ada-48gb',
    aliases: ['rtx-6000-ada'],
    deviceName: 'NVIDIA RTX 6000 Ada Generation',
    capability: [8, 9],
    multiprocessors: 142,
    threadsPerMultiprocessor: 1536,
    usableBytes: mib(48_622),
    evidence: 'calibrated',
    source: 'torch.cuda.get_device_properties (CUDA 12.1)',
    otherReadings: [],
  },
  {
    name: 'rtx-pro-6000-96gb',
    aliases: ['rtx-pro-6000'],
    deviceName: 'NVIDIA RTX PRO 6000 Blackwell Server Edition',
    capability: [12, 0],
    multiprocessors: 188,
    threadsPerMultiprocessor: 1536,
    usableBytes: mib(97_250),
    evidence: 'calibrated',
    source: 'torch.cuda.get_device_properties (torch 2.7.1+cu128)',
    otherReadings: ['94.96 GiB', '94.98 GiB'],
  },
];

/** The names and aliases of every known GPU, for a message or a completion. */
export function gpuNames(): string[] {
  return GPU_MODELS.map((gpu) => gpu.name);
}

/**
 * The GPU of a name or an alias, in any case, with `_` and blanks as `-`.
 * @param hint ends the message, for callers that take something else as well.
 * @throws UserError `unknown-gpu` that lists the known names.
 */
export function findGpu(name: string, hint = ''): GpuModel {
  const wanted = name
    .trim()
    .toLowerCase()
    .replace(/[\s_]+/g, '-');
  const found = GPU_MODELS.find(
    (gpu) =>
      gpu.name === wanted ||
      gpu.aliases.includes(wanted) ||
      gpu.deviceName.toLowerCase().replace(/\s+/g, '-') === wanted,
  );
  if (found) return found;
  throw new UserError(
    'unknown-gpu',
    `"${name}" is not a known GPU. Known: ${gpuNames().join(', ')}.${hint}`,
  );
}

/**
 * A capacity from what a person writes: a GPU's name, or a size (`80GiB`, `85899345920`).
 * @throws UserError `unknown-gpu` if it is neither, `capacity-too-small` for a size of zero.
 */
export function parseCapacity(text: string): DeviceCapacity {
  if (/^\s*\d/.test(text)) {
    let size: Bytes;
    try {
      size = parseBytes(text);
    } catch (error) {
      throw new UserError('bad-capacity', (error as Error).message, { cause: error });
    }
    return capacityOf(size);
  }
  return capacityOf(findGpu(text, ' A plain size works too, for example 79.1GiB.'));
}

/** @throws UserError `capacity-too-small` for zero bytes. */
export function capacityOf(gpu: GpuModel | Bytes): DeviceCapacity {
  if (typeof gpu === 'number') {
    if (gpu === 0) throw new UserError('capacity-too-small', 'a GPU with no memory holds nothing');
    return {
      name: formatBytes(gpu),
      usableBytes: gpu,
      evidence: 'assumed',
      source: 'given by the user',
    };
  }
  return {
    name: gpu.name,
    usableBytes: gpu.usableBytes,
    evidence: gpu.evidence,
    source: gpu.source,
    gpu,
  };
}
