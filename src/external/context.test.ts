import { expect, test } from 'vitest';
import { MiB } from '../base/bytes.ts';
import { contextEstimate, contextLocalMemory } from './context.ts';

const gpu = (name: string, major: number, multiprocessors: number, threads = 2048) => ({
  name,
  capability: [major, 0] as const,
  multiprocessors,
  threadsPerMultiprocessor: threads,
});

test('a context provides 1024 bytes for every thread that the GPU can hold', () => {
  // cudaLimitStackSize is 1024 bytes by default; multiprocessors and threads from the CUDA programming guide.
  const sizes = [gpu('a', 8, 108), gpu('h', 9, 132), gpu('b', 10, 148), gpu('gb', 10, 152)];
  expect(sizes.map((each) => contextLocalMemory(each) / MiB)).toEqual([216, 264, 296, 304]);
});

test('measured contexts are bands around the measurement, others are assumed', () => {
  // elfiegg/memTracker, experiments/gb200_calibration.json: 800.375 MiB before any communicator.
  const measured = contextEstimate(gpu('gb200-186gb', 10, 152));
  expect(measured.bytes.likely / MiB).toBe(800.375);
  expect(measured.evidence).toBe('calibrated');
  // unslothai/unsloth-zoo#1053: 426 MiB on an RTX 6000 Ada.
  expect(contextEstimate(gpu('rtx-6000-ada-48gb', 8, 142, 1536)).bytes.likely).toBe(426 * MiB);
  const assumed = contextEstimate(gpu('h100-80gb', 9, 132));
  expect(assumed.evidence).toBe('assumed');
  expect(assumed.bytes.low).toBeLessThan(assumed.bytes.likely);
});
