import { expect, test } from 'vitest';
import { specSchema } from './spec.ts';
import { expand, labelOf, vary } from './variation.ts';

const specOf = (changes: object) =>
  specSchema.parse({
    framework: 'script',
    arguments: 'train.py --batch-size 8',
    world: 8,
    ...changes,
  });

test('the last key of the matrix turns fastest, and what is excluded is left out', () => {
  const variations = expand(
    specOf({
      matrix: { gpu: ['h100-80gb', 'h200-141gb'], '--batch-size': [8, 16] },
      exclude: [{ gpu: 'h100-80gb', '--batch-size': 16 }],
    }),
    '/job',
  );
  expect(variations.map(labelOf)).toEqual([
    'gpu=h100-80gb, --batch-size=8',
    'gpu=h200-141gb, --batch-size=8',
    'gpu=h200-141gb, --batch-size=16',
  ]);
  expect(variations[2].argv).toEqual(['train.py', '--batch-size', '16']);
});

test('a matrix of which nothing is left is refused', () => {
  const spec = specOf({ matrix: { gpu: ['h100-80gb'] }, exclude: [{ gpu: 'h100-80gb' }] });
  expect(() => expand(spec, '/job')).toThrow('exclude leaves no combination');
});

test('an exclusion of what does not vary is refused', () => {
  const spec = specOf({ matrix: { gpu: ['h100-80gb'] }, exclude: [{ gpus: 'h100-80gb' }] });
  expect(() => expand(spec, '/job')).toThrow('exclude names gpus');
});

test('paths of a specification are relative to it; the name of a profile is none', () => {
  const [named] = expand(specOf({ profile: 'h100-8', checkout: '../titan' }), '/jobs/a');
  expect(named).toMatchObject({ profile: 'h100-8', checkout: '/jobs/titan' });
  const [file] = expand(specOf({ profile: 'profiles/h100.json' }), '/jobs/a');
  expect(file.profile).toBe('/jobs/a/profiles/h100.json');
});

test.each([
  ['nccl.version', 2.3, 'matrix.nccl.version: 2.3 is not a text; put the version in quotes'],
  ['nodes', 0, 'matrix.nodes: 0 is not a whole number of at least 1'],
  ['steps', 1, 'matrix.steps: 1 is not a whole number of at least 2'],
  ['margin', 'much', 'matrix.margin: "much" is not a size or a percentage'],
])('%s = %j is refused', (key, value, sentence) => {
  const [base] = expand(specOf({}), '/job');
  expect(() => vary(base, key, value)).toThrow(sentence);
});

test('twice the nodes are twice the ranks', () => {
  const [base] = expand(specOf({ world: { nodes: 2, gpus_per_node: 4 } }), '/job');
  expect(vary(base, 'nodes', 4).world).toEqual({ ranks: 16, gpusPerNode: 4 });
});
