// `memtracker nccl`: text, JSON, and every way to get it wrong.

import { expect, test } from 'vitest';
import { z } from 'zod';
import { MiB } from '../../src/base/bytes.ts';
import { memtracker } from './memtracker.ts';

const termSchema = z.object({
  name: z.string(),
  bytes: z.number(),
  evidence: z.string(),
  source: z.string(),
});
const documentSchema = z.object({
  notes: z.array(z.string()),
  ranks: z.record(
    z.string(),
    z.object({
      steps: z.array(
        z.object({
          op: z.string(),
          added_bytes: z.number(),
          total_bytes: z.number(),
          terms: z.array(termSchema),
          process_terms: z.array(termSchema),
        }),
      ),
    }),
  ),
});

async function document(...options: string[]) {
  const { stdout, stderr, exitCode } = await memtracker(['nccl', ...options, '--json']);
  expect(exitCode, stderr).toBe(0);
  return documentSchema.parse(JSON.parse(stdout));
}

test('one node of eight H100, as JSON: steps, terms and provenance', async () => {
  const ops = 'init,all_reduce:4096,all_reduce:512MiB,all_to_all:4096';
  const { ranks } = await document('--nccl', '2.30.7', '--topology', 'dgx-h100', '--ops', ops);
  const { steps } = ranks['0'];
  // What NCCL 2.30.7's own host code allocated, see src/nccl/communicator.test.ts.
  expect(steps.map(({ op, added_bytes }) => [op, added_bytes / MiB])).toEqual([
    ['init', 230],
    ['all_reduce:4096', 288],
    ['all_reduce:512MiB', 256],
    ['all_to_all:4096', 2688],
  ]);
  expect(steps[3].total_bytes).toBe((230 + 288 + 256 + 2688) * MiB);
  for (const { terms, added_bytes } of steps) {
    expect(terms.reduce((sum, term) => sum + term.bytes, 0)).toBe(added_bytes);
    for (const term of terms) expect(term.source).toMatch(/^NCCL v2\.30\.7-1 src\/\S+\.cc /);
  }
});

test('two GB200: 384 MiB of buffers and 176 of kernel stacks at the first all-reduce, 348 a process', async () => {
  const { ranks } = await document(
    ...['--topology', 'gb200-nvl72', '--gpus-per-node', '2', '--ranks', 'all'],
    ...['--ops', 'init,all_reduce:4KiB,all_reduce:4KiB'],
  );
  // elfiegg/memTracker, experiments/gb200_calibration.json.
  for (const rank of ['0', '1']) {
    const { steps } = ranks[rank];
    expect(steps.map(({ added_bytes }) => added_bytes / MiB)).toEqual([246, 384, 0]);
    const once = steps.flatMap(({ process_terms }) => process_terms);
    expect(once.map(({ bytes }) => bytes / MiB)).toEqual([172, 176]);
  }
});

test('environment variables and a version without a table', async () => {
  const { ranks, notes } = await document(
    ...['--nccl', '2.30.9', '--topology', 'dgx-h100', '--ops', 'all_reduce:4096'],
    ...['--env', 'NCCL_BUFFSIZE=1048576', '--env', 'NCCL_TUNER_PLUGIN=x.so'],
  );
  expect(ranks['0'].steps.map(({ added_bytes }) => added_bytes / MiB)).toEqual([230, 240]);
  expect(notes).toEqual([
    'NCCL 2.30.9 has no table of its own; the one of 2.30.7 (v2.30.7-1) is used',
    'NCCL_TUNER_PLUGIN=x.so is not modelled',
  ]);
});

test('a group of one GPU on each of two nodes, as text', async () => {
  const { stdout, stderr, exitCode } = await memtracker([
    'nccl',
    ...['--topology', 'dgx-h100', '--nodes', '2', '--group', '0,8', '--ranks', 'all'],
    ...['--ops', 'init,all_reduce:4096'],
  ]);
  expect(exitCode).toBe(0);
  expect(stderr).toContain('NCCL 2.30.7 (v2.30.7-1), dgx-h100, 2 ranks');
  const lines = stdout.split('\n').map((line) => line.replace(/ {2,}/g, '  ').trimEnd());
  expect(lines[0]).toBe('rank 0, 8: 4 collective channels, 0 NVLS, 4 point-to-point (4 to a peer)');
  expect(lines).toContain('init  28.00 MiB  28.00 MiB');
  expect(lines.find((line) => line.startsWith('all_reduce:4096'))).toBe(
    'all_reduce:4096  80.00 MiB  108.00 MiB  TREE has the least latency across nodes',
  );
});

test.each([
  [['--topology', 'dgx'], /"dgx" is not a known topology. Known: dgx-a100, dgx-h100/],
  [['--topology', 'dgx-h100', '--nccl', '2.4'], /older than every known version. Known: 2.19.3/],
  [['--topology', 'dgx-h100', '--env', 'NCCL_X=1'], /NCCL_X is not a variable.*NCCL_BUFFSIZE/],
  [['--topology', 'dgx-h100', '--env', 'PATH=1'], /PATH is not an NCCL variable/],
  [['--topology', 'dgx-h100', '--ops', 'gossip:4'], /"gossip:4" is not an operation.*all_reduce/],
  [['--topology', 'dgx-h100', '--ops', 'all_reduce:4q'], /"4q" is not a size/],
  [['--topology', 'dgx-h100', '--ops', 'send:4@9'], /rank 9 is not in the communicator/],
  [['--topology', 'dgx-h100', '--ranks', '8'], /rank 8 is not in a job of 8 ranks/],
  [['--topology', 'dgx-h100', '--gpus-per-node', '9'], /has 8 GPUs a node, not 9/],
])('%j is an error that says what is known', async (options, message) => {
  const { stdout, stderr, exitCode } = await memtracker(['nccl', ...options]);
  expect(exitCode).toBe(3);
  expect(stdout).toBe('');
  expect(stderr).toMatch(message);
  expect(stderr).not.toMatch(/\n\s+at /);
});
