import { expect, test } from 'vitest';
import { allowedAlgorithms, collectiveOf } from './algorithm.ts';
import { Communicator } from './communicator.ts';
import { readEnvironment } from './environment.ts';
import { DEFAULT_RELEASE } from './release.ts';
import { findTopology } from './topology.ts';

const sorted = (written: string, collective: 'all_reduce' | 'broadcast' = 'all_reduce') => {
  const allowed = allowedAlgorithms(written, collective);
  return allowed && [...allowed].sort();
};

test('NCCL_ALGO: lists, negation and lists by function', () => {
  expect(sorted('Ring,Tree')).toEqual(['ring', 'tree']);
  expect(sorted('^NVLS,NVLSTree')).toEqual(['collnet', 'pat', 'ring', 'tree']);
  expect(sorted('allreduce:tree;broadcast:ring')).toEqual(['tree']);
  expect(sorted('allreduce:tree;broadcast:ring', 'broadcast')).toEqual(['ring']);
  expect(sorted('broadcast:ring')).toBeUndefined();
  expect(() => allowedAlgorithms('Rings', 'all_reduce')).toThrow(
    /"Rings" is not known; known: ring/,
  );
});

function largeAllReduce(env: Record<string, string>): string[] {
  const topology = findTopology('dgx-h100');
  const ranks = [0, 1, 2, 3, 4, 5, 6, 7];
  const group = new Communicator(
    {
      release: DEFAULT_RELEASE,
      topology,
      environment: readEnvironment(env, DEFAULT_RELEASE),
      placement: { gpusPerNode: 8 },
    },
    ranks,
    0,
  );
  group.initialise();
  return group.run({ collective: 'all_reduce', bytes: 2 ** 29 }).terms.map(({ name }) => name);
}

test('NCCL_ALGO decides what a large all-reduce connects', () => {
  expect(largeAllReduce({})).toEqual(['NVLS buffers']);
  expect(largeAllReduce({ NCCL_ALGO: 'Ring' })).toEqual(['P2P buffers (ring)']);
  expect(largeAllReduce({ NCCL_ALGO: 'Tree' })).toEqual(['P2P buffers (tree)']);
  expect(largeAllReduce({ NCCL_ALGO: '^NVLS' })).toContain('P2P buffers (ring)');
});

test("c10d's spellings are understood, others are not guessed", () => {
  expect(collectiveOf('_allgather_base_')).toBe('all_gather');
  expect(collectiveOf('batch_isend')).toBe('send');
  expect(collectiveOf('all_to_all_single')).toBe('all_to_all');
  expect(collectiveOf('quantum_reduce')).toBeUndefined();
});
