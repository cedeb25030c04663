import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { reportDocumentSchema } from '../../src/report/document_schema.ts';
import { alloc, close, cpu, cuda, writeBatches } from '../traces/event_list.ts';
import { writeSyntheticTrace } from '../traces/synthetic.ts';
import { memtracker, temporaryFolder } from './memtracker.ts';

async function traces(): Promise<{ folder: string; main: string; branch: string }> {
  const folder = temporaryFolder();
  const main = join(folder, 'main.mtrace');
  const branch = join(folder, 'branch.mtrace');
  await writeSyntheticTrace(main);
  await writeSyntheticTrace(branch, { savedMiB: 20 });
  return { folder, main, branch };
}

test('report prints the answer on stdout, nothing on stderr, and ends with 0', async () => {
  const { main } = await traces();
  const { stdout, stderr, exitCode } = await memtracker(['report', main]);
  expect(stderr).toBe('');
  expect(exitCode).toBe(0);
  expect(stdout.split('\n')[0]).toMatch(/^cuda:0 of rank 0 peaks at \d/);
});

test('report --json is what its schema says, and the replay options change it', async () => {
  const { main } = await traces();
  const fixed = await memtracker(['report', main, '--json']);
  const document = reportDocumentSchema.parse(JSON.parse(fixed.stdout));
  expect(document.devices['cuda:0'].peak.allocated).toMatchObject({ step: 2 });
  const options = ['--gpu', '300MiB', '--alloc-conf', 'expandable_segments:True'];
  const small = await memtracker(['report', main, '--json', ...options]);
  const other = reportDocumentSchema.parse(JSON.parse(small.stdout));
  expect(other.devices['cuda:0'].out_of_memory).toMatchObject({ kind: 'allocator', step: 1 });
  expect(other.replay).toMatchObject({ gpu: '300MiB', alloc_conf: 'expandable_segments:True' });
});

test('report --html and --junit write files', async () => {
  const { folder, main, branch } = await traces();
  const page = join(folder, 'report.html');
  const junit = join(folder, 'report.xml');
  const { stdout, exitCode } = await memtracker([
    ...['report', main, '--html', page, '--junit', junit, '--beside', branch],
  ]);
  expect(exitCode).toBe(0);
  expect(stdout).toBe(page);
  expect(statSync(page).size).toBeGreaterThan(100_000);
  expect(readFileSync(junit, 'utf8')).toContain('<testsuites');
});

test('report names what is wrong with a file, an option or a place', async () => {
  const { folder, main } = await traces();
  const cases: [string[], string][] = [
    [[join(folder, 'absent.mtrace')], 'absent.mtrace'],
    [[main, '--gpu', 'h1000'], '"h1000" is not a known GPU'],
    [[main, '--alloc-conf', 'expandable:True'], 'expandable'],
    [[main, '--at', 'highest'], 'must be one of requested, allocated'],
    [[main, '--html', join(folder, 'no', 'such.html')], 'cannot write'],
  ];
  for (const [rest, message] of cases) {
    const { stdout, stderr, exitCode } = await memtracker(['report', ...rest]);
    expect(exitCode, message).toBe(3);
    expect(stdout).toBe('');
    expect(stderr).toContain(message);
    expect(stderr).not.toContain('bug');
  }
});

test('compare says what changed, and fails above the threshold with 1', async () => {
  const { main, branch } = await traces();
  const passed = await memtracker(['compare', main, branch, '--fail-above', '1GiB']);
  expect(passed.exitCode).toBe(0);
  expect(passed.stdout.split('\n')[0]).toBe(
    'cuda:0: the allocated peak grows by 48.00 MiB (+10.7 %), 449.00 MiB → 497.00 MiB',
  );
  const failed = await memtracker(['compare', main, branch, '--fail-above', '2%', '--markdown']);
  expect(failed.exitCode).toBe(1);
  expect(failed.stdout).toContain('> ⚠ Above the threshold of 2 %: allocated +48.00 MiB');
});

test('export writes each format to a file or to stdout', async () => {
  const { folder, main } = await traces();
  for (const format of ['memory_viz', 'perfetto', 'speedscope', 'csv']) {
    const out = join(folder, format);
    const { exitCode, stdout } = await memtracker([
      ...['export', main, '--format', format, '--out', out],
    ]);
    expect([exitCode, stdout]).toEqual([0, '']);
    expect(existsSync(out)).toBe(true);
  }
  const { stdout } = await memtracker(['export', main, '--format', 'csv', '--table', 'phases']);
  expect(stdout.split(/\r?\n/)[0]).toContain('phase,depth,begin_event');
  const unknown = await memtracker(['export', main, '--format', 'csv', '--device', 'cuda:9']);
  expect(unknown.exitCode).toBe(3);
  expect(unknown.stderr).toContain('cuda:9 is not a device of the run; there are: cuda:0');
});

test('a run that made nothing on a GPU says so in every form', async () => {
  const folder = temporaryFolder();
  const runs = { nothing: [close(0)], host: [cpu(1), alloc(1, 2 ** 20), close(2)] };
  for (const [name, events] of Object.entries(runs)) {
    const path = join(folder, `${name}.mtrace`);
    await writeBatches(path, [events]);
    const text = await memtracker(['report', path]);
    expect([text.exitCode, text.stderr], name).toEqual([0, '']);
    expect(text.stdout).toContain('No tensor was ever made on a GPU.');
    const json = await memtracker(['report', path, '--json']);
    const { devices } = reportDocumentSchema.parse(JSON.parse(json.stdout));
    expect(Object.keys(devices)).toEqual(name === 'host' ? ['cpu'] : []);
    const csv = await memtracker(['export', path, '--format', 'memory_viz', '--device', 'cuda:0']);
    expect(csv.exitCode).toBe(3);
  }
});

test('the run of a training code that failed is reported, and is not the whole job: 2', async () => {
  const path = join(temporaryFolder(), 'failed.mtrace');
  await writeBatches(path, [
    [cuda(), alloc(1, 2 ** 20), { type: 'close', status: 'failed', events: 3, counts: {} }],
  ]);
  const { exitCode, stdout, stderr } = await memtracker(['report', path]);
  expect([exitCode, stderr]).toEqual([2, '']);
  expect(stdout).toContain('cuda:0 of rank 0 peaks at');
});

test('an incomplete trace ends every form of its report with 2', async () => {
  const folder = temporaryFolder();
  const path = join(folder, 'gap.mtrace');
  const batches = [[cuda()], [alloc(1, 2 ** 20)], [close(4)]];
  await writeBatches(path, batches, [0, 2, 3]);
  for (const form of [[], ['--json'], ['--markdown'], ['--html', join(folder, 'gap.html')]]) {
    const { exitCode, stderr } = await memtracker(['report', path, ...form]);
    expect([exitCode, stderr], form.join()).toEqual([2, '']);
  }
});
