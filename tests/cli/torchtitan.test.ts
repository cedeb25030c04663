// The command line on a real TorchTitan (a checkout, or the release that `npm test` fetches).

import { cpSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, test } from 'vitest';
import { readTrace } from '../../src/trace/reader.ts';
import { memtracker, temporaryFolder } from './memtracker.ts';

const checkout = process.env.MEMTRACKER_TORCHTITAN ?? process.env.MEMTRACKER_TORCHTITAN_RELEASE;
const MODEL = ['--module', 'llama3', '--config', 'llama3_debugmodel'];

const has = (folder: string) => existsSync(join(checkout ?? '', 'torchtitan', folder));
const graphTrainers = ['llama3', 'deepseek_v3'].filter((model) =>
  has(`experiments/graph_trainer/${model}`),
);
// Image batches are made by the data pipeline of this folder; the encoders' sizes of flux are among a checkout's tests.
const images = has('models/kimi_k2_7') && has('components/data');
const fluxEncoders = '../tests/assets/flux_test_encoders';
const missing = [
  'experiments/graph_trainer',
  'models/kimi_k2_7',
  'components/data',
  fluxEncoders,
].filter((folder) => !has(folder));

beforeAll(() => {
  if (checkout === undefined) {
    console.warn(
      'SKIPPED: MEMTRACKER_TORCHTITAN names no checkout, MEMTRACKER_TORCHTITAN_RELEASE no release (npm test sets it)',
    );
  } else if (missing.length > 0) {
    console.warn(`SKIPPED: ${checkout} has no ${missing.join(', no ')}`);
  }
});

describe.skipIf(checkout === undefined)('a real TorchTitan', () => {
  const job = ['--framework', 'torchtitan', '--checkout', checkout ?? '', '--world', '8'];

  test('the debug model is traced for two steps, phases and identity included', async () => {
    const out = join(temporaryFolder(), 'run.mtrace');
    const result = await memtracker(['trace', '-q', ...job, '--out', out, '--', ...MODEL]);
    // Assumptions (balanced documents, synthetic tokens) make it 2.
    expect([0, 2], result.stderr).toContain(result.exitCode);
    const trace = await readTrace(out);
    expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
    expect(trace.header).toMatchObject({ framework: 'torchtitan', world: 8, rank: 0, argv: MODEL });
    const names = trace.phases.map((phase) => phase?.name);
    for (const name of ['forward', 'backward', 'optimizer']) expect(names).toContain(name);
    const steps = trace.phases.filter((phase) => phase?.name === 'step');
    expect(steps).toHaveLength(2);
  }, 300_000);

  test.skipIf(graphTrainers.length === 0).each(graphTrainers)(
    'the graph trainer runs the debug model of %s',
    async (model) => {
      const argv = ['--module', model, '--config', `${model}_debugmodel`];
      const out = join(temporaryFolder(), 'run.mtrace');
      const option = ['--option', 'engine=graph'];
      const result = await memtracker([
        'trace',
        '-q',
        ...job,
        ...option,
        '--out',
        out,
        '--',
        ...argv,
      ]);
      expect([0, 2], result.stderr).toContain(result.exitCode);
      const trace = await readTrace(out);
      expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
      // One graph is forward, loss and backward: no phase of its own for each of them.
      const names = trace.phases.map((phase) => phase?.name);
      expect(names).toContain('forward_backward');
      expect(names).not.toContain('forward');
      expect(names.filter((name) => name === 'step')).toHaveLength(2);
      expect(trace.run.get('config')).toMatchObject({ 'compile.mode': 'aot_fx_trace' });
    },
    300_000,
  );

  test.skipIf(!images)(
    'a model with a vision encoder gets images, as many tokens as the checkout makes of their size',
    async () => {
      const argv = ['--module', 'kimi_k2_7', '--config', 'kimi_k2_5_debugmodel'];
      const out = join(temporaryFolder(), 'run.mtrace');
      const run = (...options: string[]) =>
        memtracker(['trace', '-q', ...job, ...options, '--out', out, '--', ...argv]);
      const result = await run('--option', 'image=280x420');
      expect([0, 2], result.stderr).toContain(result.exitCode);
      const trace = await readTrace(out);
      expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
      const assumed = trace.uncovered.find((entry) => entry.name === 'images');
      expect(assumed?.detail).toContain('280x420');
      // kimi_k2_7/config_registry.py: patches of 14 pixels; (280 / 14) * (420 / 14) = 600 of them, 3 * 14 * 14 values each.
      const shapes = trace.tensors.map((tensor) => tensor?.shape.join('x'));
      expect(shapes).toContain('600x588');
      const tooLarge = await run('--option', 'image=1400x1400');
      expect(tooLarge.exitCode).toBe(3);
      expect(tooLarge.stderr).toContain('2502 tokens');
    },
    300_000,
  );

  test.skipIf(!has(fluxEncoders))(
    'flux runs with encoders of the sizes that the checkout names',
    async () => {
      const argv = ['--module', 'flux', '--config', 'flux_debugmodel'];
      const out = join(temporaryFolder(), 'run.mtrace');
      const result = await memtracker(['trace', '-q', ...job, '--out', out, '--', ...argv]);
      expect([0, 2], result.stderr).toContain(result.exitCode);
      const trace = await readTrace(out);
      expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
      // tests/assets/flux_test_encoders/t5-v1_1-xxl/config.json: vocab_size, d_model.
      expect(trace.tensors.map((tensor) => tensor?.shape.join('x'))).toContain('32128x4096');
    },
    300_000,
  );

  test('arguments that it refuses are told in its own words', async () => {
    const argv = [...MODEL, '--training.no_such_thing', '1'];
    const out = join(temporaryFolder(), 'run.mtrace');
    const result = await memtracker(['trace', '-q', ...job, '--out', out, '--', ...argv]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('no_such_thing');
    expect(result.stderr).not.toContain('Traceback');
  }, 300_000);

  test('a config that it does not have is told in its own words', async () => {
    const argv = ['--module', 'llama3', '--config', 'no_such_config'];
    const out = join(temporaryFolder(), 'run.mtrace');
    const result = await memtracker(['trace', '-q', ...job, '--out', out, '--', ...argv]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('no_such_config');
  }, 300_000);

  test('a checkout whose interface changed is refused by the name of what is missing', async () => {
    const folder = temporaryFolder();
    cpSync(join(checkout ?? '', 'torchtitan'), join(folder, 'torchtitan'), { recursive: true });
    const trainer = join(folder, 'torchtitan', 'trainer.py');
    const source = readFileSync(trainer, 'utf8');
    expect(source).toContain('def train_step(');
    writeFileSync(trainer, source.replaceAll('train_step(', 'train_one_step('));
    const out = join(temporaryFolder(), 'run.mtrace');
    const changed = ['--framework', 'torchtitan', '--checkout', folder, '--out', out];
    const result = await memtracker(['trace', '-q', ...changed, '--', ...MODEL]);
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('lacks torchtitan.trainer.Trainer.train_step');
    expect(result.stderr).not.toContain('Traceback');
  }, 300_000);
});
