// One real job, traced once and replayed on three GPUs: TorchTitan's llama3_8b, world 16 on two nodes of eight, four sequences of
// 8192 tokens a rank. Needs a TorchTitan checkout (MEMTRACKER_TORCHTITAN) and about two minutes.

import { join } from 'node:path';
import { expect, test } from 'vitest';
import { analyzeTrace } from '../../src/attribution/analysis.ts';
import { fullDeviceOf } from '../../src/attribution/out_of_memory.ts';
import { phaseAt } from '../../src/attribution/phase_title.ts';
import { GiB, MiB } from '../../src/base/bytes.ts';
import { readTrace } from '../../src/trace/reader.ts';
import { memtracker, temporaryFolder } from '../cli/memtracker.ts';

const checkout = process.env.MEMTRACKER_TORCHTITAN;
if (checkout === undefined) {
  console.warn('SKIPPED: a real job on three GPUs; MEMTRACKER_TORCHTITAN names no checkout');
}

test.skipIf(checkout === undefined)(
  'llama3_8b on two nodes fills 80 GB and fits 141 and 192 GB',
  { timeout: 600_000 },
  async () => {
    const out = join(temporaryFolder(), 'run.mtrace');
    const { exitCode, stderr } = await memtracker([
      'trace',
      ...['--framework', 'torchtitan', '--checkout', checkout ?? '', '--world', '16'],
      ...['--out', out, '--quiet', '--'],
      ...['--module', 'llama3', '--config', 'llama3_8b', '--training.disable_cuda_graphs'],
      ...['--training.num_tokens_per_microbatch_per_dp_rank', '32768'],
    ]);
    expect([0, 2], stderr).toContain(exitCode);
    const trace = await readTrace(out);
    const on = (gpu: string) => analyzeTrace(trace, { gpu, ncclVersion: '2.30.7' }).devices[0];

    const [small, middle, large] = ['h100-80gb', 'h200-141gb', 'b200-192gb'].map(on);
    expect(middle.outOfMemory).toBeNull();
    expect(large.outOfMemory).toBeNull();
    expect(small.outOfMemory).toMatchObject({ kind: 'allocator' });

    // The failure: where, who, and PyTorch's text with the capacity of that GPU (79.18 GiB).
    const full = fullDeviceOf(small);
    const phase = phaseAt(trace, small.outOfMemory?.event ?? 0);
    expect(phase?.path).toMatch(/^step\[step=1\]\/forward_backward\[micro_batch=0\]/);
    expect(full?.frames.some(({ file }) => file.includes('torchtitan/'))).toBe(true);
    expect(full?.owners.reduce((sum, { bytes }) => sum + bytes, 0)).toBeGreaterThan(70 * GiB);
    expect(small.outOfMemory?.message).toMatch(
      /^CUDA out of memory\. Tried to allocate [\d.]+ \w+\. GPU 0 has a total capacity of 79\.18 GiB of which/,
    );

    // Resident by phase: only the context at the start; once it is made, the communicator of 16 ranks stays.
    for (const { timeline, externalAt } of [small, middle, large]) {
      for (const { before, after, peaks } of timeline.phases) {
        for (const { resident, reserved, external } of [before, after]) {
          expect(resident).toBe(reserved + external);
        }
        expect(peaks.resident.bytes).toBeGreaterThanOrEqual(peaks.reserved.bytes);
      }
      const nccl = externalAt(timeline.length - 1).filter(({ category }) => category === 'nccl');
      expect(nccl.map(({ name }) => name)).toContain('NCCL communicator default_pg 0 (16 ranks)');
      // 134 MiB of structures and at least 168 of ring buffers, and what the process pays once.
      const [first] = timeline.phases;
      expect(timeline.final.external - first.before.external).toBeGreaterThan(500 * MiB);
      expect(first.before.external).toBeLessThan(1 * GiB);
    }
  },
);
