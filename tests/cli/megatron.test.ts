// The command line on a real Megatron-LM checkout, named by MEMTRACKER_MEGATRON.

import { cpSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { readTrace } from '../../src/trace/reader.ts';
import { memtracker, temporaryFolder } from './memtracker.ts';

const checkout = process.env.MEMTRACKER_MEGATRON;

/** A small GPT on Megatron's own layers. */
const GPT = (
  '--num-layers 2 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 ' +
  '--micro-batch-size 2 --global-batch-size 32 --train-iters 10 --lr 1e-4 --min-lr 1e-5 --lr-decay-iters 100 ' +
  '--mock-data --tokenizer-type NullTokenizer --vocab-size 1000 --transformer-impl local --bf16 --eval-iters 0 ' +
  '--no-persist-layer-norm --no-masked-softmax-fusion --split 100,0,0 --attention-backend unfused'
).split(' ');

beforeAll(() => {
  if (checkout === undefined) {
    console.warn('SKIPPED: MEMTRACKER_MEGATRON names no Megatron-LM checkout');
  }
});

describe.skipIf(checkout === undefined)('a real Megatron-LM', () => {
  const job = ['--framework', 'megatron', '--checkout', checkout ?? ''];

  test('the last rank of a pipeline is traced, with its phases and the instant at which Megatron reads its memory', async () => {
    const out = join(temporaryFolder(), 'run.mtrace');
    const pipeline = ['--pipeline-model-parallel-size', '2'];
    const log = ['--log-memory-to-tensorboard', '--tensorboard-log-interval', '1'];
    const rank = ['--world', '8', '--rank', '7', '--out', out];
    const result = await memtracker([
      'trace',
      '-q',
      ...job,
      ...rank,
      '--',
      ...GPT,
      ...pipeline,
      ...log,
    ]);
    // Assumptions (answers to questions about values) make it 2.
    expect([0, 2], result.stderr).toContain(result.exitCode);
    const trace = await readTrace(out);
    expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
    const names = new Set(trace.phases.map((phase) => phase?.name));
    for (const name of [
      'setup_model_and_optimizer',
      'forward_backward',
      'forward',
      'backward',
      'p2p',
      'optimizer',
      'finalize_model_grads',
    ]) {
      expect(names).toContain(name);
    }
    expect(trace.phases.filter((phase) => phase?.name === 'memory_log')).toHaveLength(2);
  }, 600_000);

  test('an argument that Megatron does not know is told in its own words', async () => {
    const out = join(temporaryFolder(), 'run.mtrace');
    const result = await memtracker([
      'trace',
      '-q',
      ...job,
      '--out',
      out,
      '--',
      ...GPT,
      '--no-such-thing',
    ]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('--no-such-thing');
    expect(result.stderr).not.toContain('Traceback');
  }, 600_000);

  test('a world that the parallel sizes do not divide is told in its own words', async () => {
    const out = join(temporaryFolder(), 'run.mtrace');
    const tensor = ['--tensor-model-parallel-size', '4'];
    const result = await memtracker([
      'trace',
      '-q',
      ...job,
      '--world',
      '6',
      '--out',
      out,
      '--',
      ...GPT,
      ...tensor,
    ]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('world size (6) is not divisible');
  }, 600_000);

  test('what the configuration of a layer refuses is told in its own words', async () => {
    const out = join(temporaryFolder(), 'run.mtrace');
    const both = '--cpu-offloading-num-layers 1 --pipeline-model-parallel-size 2'.split(' ');
    const offloading = ['--framework', 'megatron', '--checkout', checkout ?? '', '--world', '8'];
    const implementation = GPT.map((word) => (word === 'local' ? 'transformer_engine' : word));
    const result = await memtracker([
      'trace',
      '-q',
      ...offloading,
      '--out',
      out,
      '--',
      ...implementation,
      ...both,
    ]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('no support for Pipeline parallelism with CPU offloading');
  }, 600_000);

  test('a tokenizer of unknown size is asked for by name', async () => {
    const out = join(temporaryFolder(), 'run.mtrace');
    const tokenizer = GPT.map((word) => (word === 'NullTokenizer' ? 'Llama2Tokenizer' : word));
    const unknown = tokenizer.filter((word) => word !== '--vocab-size' && word !== '1000');
    const result = await memtracker(['trace', '-q', ...job, '--out', out, '--', ...unknown]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('vocab_size=N');
  }, 600_000);

  test('a checkout whose interface changed is refused by the name of what is missing', async () => {
    const folder = temporaryFolder();
    mkdirSync(join(folder, 'megatron'));
    for (const part of ['core', 'training']) {
      cpSync(join(checkout ?? '', 'megatron', part), join(folder, 'megatron', part), {
        recursive: true,
      });
    }
    for (const file of ['pretrain_gpt.py', 'gpt_builders.py']) {
      cpSync(join(checkout ?? '', file), join(folder, file));
    }
    const training = join(folder, 'megatron', 'training', 'training.py');
    const source = readFileSync(training, 'utf8');
    expect(source).toContain('def train_step(');
    writeFileSync(training, source.replaceAll('train_step(', 'train_one_step('));
    const out = join(temporaryFolder(), 'run.mtrace');
    const changed = ['--framework', 'megatron', '--checkout', folder, '--out', out];
    const result = await memtracker(['trace', '-q', ...changed, '--', ...GPT]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('megatron.training.training');
    expect(result.stderr).toContain('train_step');
  }, 600_000);
});
