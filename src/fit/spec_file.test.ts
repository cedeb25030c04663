import { expect, test } from 'vitest';
import { parseSpec } from './spec_file.ts';
import { specTemplate, TEMPLATE_NAMES } from './spec_template.ts';
import { expand, labelOf } from './variation.ts';

test('a fault names file, line, field and what is allowed', () => {
  const text = 'framework: script\nworld: 8\nsteps: 1\nmargin: 5 apples\ncolour: red\n';
  expect(() => parseSpec(text, 'job.yaml')).toThrow(
    /job\.yaml:3: steps: at least 2.*\njob\.yaml:4: margin: must be a size \(2GiB\) or a share/s,
  );
  expect(() => parseSpec(text, 'job.yaml')).toThrow(/colour/);
});

test('broken YAML is refused with its line', () => {
  expect(() => parseSpec('framework: script\nworld: [8\n', 'job.yaml')).toThrow(/^job\.yaml:\d/);
});

test('the matrix is the product of its lists, the last key fastest, less what is excluded', () => {
  const spec = parseSpec(
    [
      'framework: torchtitan',
      'world: {nodes: 2, gpus_per_node: 8}',
      'arguments: --module llama3 --training.local_batch_size 1',
      'matrix:',
      '  gpu: [h100-80gb, h200-141gb]',
      '  training.local_batch_size: [1, 2]',
      'exclude:',
      '  - {gpu: h100-80gb, training.local_batch_size: 2}',
    ].join('\n'),
    'job.yaml',
  );
  const variations = expand(spec, '/specs');
  expect(variations.map(labelOf)).toEqual([
    'gpu=h100-80gb, training.local_batch_size=1',
    'gpu=h200-141gb, training.local_batch_size=1',
    'gpu=h200-141gb, training.local_batch_size=2',
  ]);
  expect(variations[2]?.argv.slice(-2)).toEqual(['--training.local_batch_size', '2']);
  expect(variations[0]?.world).toEqual({ ranks: 16, gpusPerNode: 8 });
});

test('every template is a valid specification', () => {
  for (const name of TEMPLATE_NAMES) {
    const spec = parseSpec(specTemplate(name) ?? '', `${name}.yaml`);
    expect(spec.framework).toBe(name);
    expect(expand(spec, '/').length).toBe(2);
  }
});
