import { expect, test } from 'vitest';
import { GiB } from '../base/bytes.ts';
import { TOPOLOGY_PRESETS } from '../nccl/topology.ts';
import { findGpu, GPU_MODELS, parseCapacity } from './gpus.ts';

test('usable bytes print as the GiB that PyTorch reported on that GPU', () => {
  // PyTorch OOM messages ("GPU 0 has a total capacity of ...") and TorchTitan logs of each part.
  const reported: Record<string, string> = {
    'a100-40gb': '39.39',
    'a100-80gb': '79.15',
    'h100-80gb': '79.18',
    'h200-141gb': '139.80',
    'b200-192gb': '178.35',
    'b300-288gb': '267.69',
    'gb300-288gb': '276.50',
    'l40s-48gb': '44.39',
    'rtx-5090-32gb': '31.36',
    'rtx-pro-6000-96gb': '94.97',
  };
  for (const [name, gib] of Object.entries(reported)) {
    expect(Math.abs(findGpu(name).usableBytes / GiB - Number(gib)), name).toBeLessThan(0.006);
  }
});

test('the GB200 capacity is the one measured with cudaMemGetInfo', () => {
  // elfiegg/memTracker experiments/gb200_calibration.json, device_total_bytes.
  expect(findGpu('gb200').usableBytes).toBe(197940150272);
});

test('names, aliases and device names find a GPU in any spelling', () => {
  expect(findGpu('H100').name).toBe('h100-80gb');
  expect(findGpu('NVIDIA H200').name).toBe('h200-141gb');
  expect(findGpu('rtx_4090').name).toBe('rtx-4090-24gb');
});

test('an unknown name lists the known ones', () => {
  expect(() => parseCapacity('h101')).toThrow(/h100-80gb, h100-96gb, h200-141gb/);
});

test('a plain size is a capacity without a GPU model', () => {
  const capacity = parseCapacity('80GiB');
  expect(capacity.usableBytes).toBe(80 * GiB);
  expect(capacity.gpu).toBeUndefined();
  expect(capacity.evidence).toBe('assumed');
  expect(() => parseCapacity('0')).toThrow(/no memory/);
  expect(() => parseCapacity('80 parsecs')).toThrow(/is not a size/);
});

test('every name and alias is written once', () => {
  const all = GPU_MODELS.flatMap((gpu) => [gpu.name, ...gpu.aliases]);
  expect(new Set(all).size).toBe(all.length);
});

test('every topology preset names a known GPU of its compute capability', () => {
  for (const { gpu, computeCapability } of TOPOLOGY_PRESETS) {
    const [major, minor] = findGpu(gpu).capability;
    expect(major * 10 + minor).toBe(computeCapability);
  }
});
