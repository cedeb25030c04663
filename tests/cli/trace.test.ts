// `memtracker trace` on small real scripts: exit statuses, what is kept, and that nothing is left behind.

import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { expect, test } from 'vitest';
import { findGpu } from '../../src/device/gpus.ts';
import { ensureEnvironment } from '../../src/sidecar/environment.ts';
import { traceRun } from '../../src/sidecar/trace_run.ts';
import { readTrace } from '../../src/trace/reader.ts';
import { memtracker, startMemtracker, temporaryFolder, untilLine } from './memtracker.ts';

const TRAINING = `
import sys, time
import torch
from torch import nn

def train(after_step=lambda step: None, steps=10):
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        loss = model(torch.randn(64, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step(step)
`;

/** A folder with a script, and a place for sockets that must be empty afterwards. */
function workplace(body: string) {
  const cwd = temporaryFolder();
  const sockets = temporaryFolder();
  writeFileSync(join(cwd, 'training.py'), TRAINING);
  writeFileSync(join(cwd, 'train.py'), `from training import *\n${body}\n`);
  const env = { XDG_RUNTIME_DIR: sockets };
  return { cwd, sockets, env, out: join(cwd, 'run.mtrace') };
}

/** Process ids of sidecars that a process started. */
function sidecarsOf(parent: number): number[] {
  const found: number[] = [];
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    try {
      const environment = readFileSync(`/proc/${name}/environ`, 'utf8');
      if (environment.split('\0').includes(`MEMTRACKER_PARENT=${parent}`)) found.push(Number(name));
    } catch {
      // Gone, or not ours.
    }
  }
  return found;
}

async function untilGone(pid: number): Promise<void> {
  for (let look = 0; look < 100 && sidecarsOf(pid).length > 0; look++) {
    await new Promise((done) => setTimeout(done, 50));
  }
  expect(sidecarsOf(pid)).toEqual([]);
}

/** Starts a trace and waits until the script printed `ready`. */
async function startUntilReady(place: ReturnType<typeof workplace>) {
  const arguments_ = ['trace', '--verbose', '--out', place.out, '--', 'train.py'];
  const started = startMemtracker(arguments_, place);
  await untilLine(started, 'ready');
  return { started, pid: started.pid as number };
}

const READY_AFTER_FIRST_STEP = `
def wait(step):
    print("ready", flush=True)
    time.sleep(60)
train(wait)
`;

test('a script is traced to its end, and only the product is on stdout', async () => {
  const place = workplace('train()');
  const result = await memtracker(
    ['trace', '--quiet', '--out', 'run.mtrace', '--', 'train.py'],
    place,
  );
  expect(result.exitCode, result.stderr).toBe(0);
  expect(result.stderr).toBe('');
  expect(result.stdout).toMatch(
    /^run\.mtrace: [\d,]+ events, [\d.]+ KiB, [\d.]+ s, [\d.]+ MiB of host memory\nlive storages peaked at [\d.]+ MiB; memtracker report run\.mtrace tells where and what$/,
  );
  const trace = await readTrace(place.out);
  expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
  expect(trace.footer).toMatchObject({ status: 'done', exit_code: 0, signal: null, faults: [] });
  expect(readdirSync(place.sockets)).toEqual([]);
});

test('--json prints the outcome as one document', async () => {
  const place = workplace('train()');
  const result = await memtracker(
    ['trace', '-q', '--json', '--steps', '1', '--', 'train.py'],
    place,
  );
  expect(result.exitCode, result.stderr).toBe(0);
  expect(JSON.parse(result.stdout)).toMatchObject({
    schema: 'memtracker.trace_outcome/1',
    path: join(place.cwd, 'script-rank0.mtrace'),
    exit_status: 0,
    status: 'done',
    problems: [],
  });
});

test('an exception of the script ends with 4, its traceback, and the trace up to there', async () => {
  const place = workplace(`
def explode(step):
    raise ValueError("the loss is on fire")
train(explode)`);
  const result = await memtracker(['trace', '--out', 'run.mtrace', '--', 'train.py'], place);
  expect(result.exitCode).toBe(4);
  expect(result.stderr).toContain('error: ValueError: the loss is on fire');
  expect(result.stderr).toContain('Traceback (most recent call last)');
  const trace = await readTrace(place.out);
  expect(trace.integrity.status).toBe('failed');
  expect(trace.errors[0].exception).toBe('ValueError');
  expect(trace.storageCount).toBeGreaterThan(10);
});

test('an operator that refuses its shapes is named with them', async () => {
  const place = workplace(`
train(lambda step: torch.randn(3, 4, device="cuda") @ torch.randn(5, 6, device="cuda"))`);
  const result = await memtracker(['trace', '--out', 'run.mtrace', '--', 'train.py'], place);
  expect(result.exitCode).toBe(4);
  expect(result.stderr).toMatch(/\[3, 4\].*\[5, 6\]/s);
});

test('a module that is not installed is named with the command that installs it', async () => {
  const place = workplace('import a_module_nobody_has');
  const result = await memtracker(['trace', '--out', 'run.mtrace', '--', 'train.py'], place);
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('a_module_nobody_has');
  expect(result.stderr).toMatch(/-m pip install/);
});

test('a script that is not there is named', async () => {
  const place = workplace('');
  const result = await memtracker(['trace', '--out', 'run.mtrace', '--', 'missing.py'], place);
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('missing.py');
  expect(result.stderr).not.toContain('Traceback');
});

test('a worker killed with SIGKILL is told from a failure, and what arrived is kept', async () => {
  const place = workplace(READY_AFTER_FIRST_STEP);
  const { started, pid } = await startUntilReady(place);
  const [worker] = sidecarsOf(pid);
  process.kill(worker, 'SIGKILL');
  const result = await started;
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain(
    'error: the worker was killed by SIGKILL (often the kernel, short of memory',
  );
  await untilGone(pid);
  expect(readdirSync(place.sockets)).toEqual([]);
  const trace = await readTrace(place.out);
  expect(trace.integrity.complete).toBe(false);
  expect(trace.footer).toMatchObject({ status: 'killed', signal: 'SIGKILL' });
  expect(trace.storageCount).toBeGreaterThan(10);
});

test('Ctrl-C ends the worker, keeps what arrived and exits with 130', async () => {
  const place = workplace(READY_AFTER_FIRST_STEP);
  const { started, pid } = await startUntilReady(place);
  started.kill('SIGINT');
  const result = await started;
  expect(result.exitCode).toBe(130);
  await untilGone(pid);
  expect(readdirSync(place.sockets)).toEqual([]);
  const trace = await readTrace(place.out);
  expect(trace.footer?.status).toBe('interrupted');
  expect(trace.storageCount).toBeGreaterThan(10);
});

test('a worker that ignores SIGTERM, and its children, are killed after the grace time', async () => {
  const place = workplace(`
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "300"])
print("ready", flush=True)
while True:
    time.sleep(1)`);
  const { started, pid } = await startUntilReady(place);
  expect(sidecarsOf(pid).length).toBeGreaterThanOrEqual(2);
  started.kill('SIGINT');
  expect((await started).exitCode).toBe(130);
  await untilGone(pid);
});

test('a worker that does not exit after its stream is whole does not spoil the run', async () => {
  const place = workplace(
    'import os\nos._exit = lambda status: time.sleep(600)\ntrain(lambda step: None, steps=2)',
  );
  const outcome = await traceRun(
    {
      ...{ framework: 'script', argv: ['train.py'], cwd: place.cwd, out: place.out },
      ...{ world: 1, rank: 0, gpusPerNode: 8, gpu: findGpu('h100-80gb') },
      ...{ steps: 2, stackDepth: 8, options: {} },
    },
    {
      environment: await ensureEnvironment({ env: process.env }),
      env: { ...process.env, ...place.env },
      memtrackerVersion: 'test',
      timeouts: { stop: 500, grace: 500 },
    },
  );
  expect(outcome.exit.cause).toBe('stop_timeout');
  expect(outcome.footer.status).toBe('done');
  expect(outcome.exitStatus).toBe(0);
  expect(outcome.problems).toEqual([
    'the worker did not exit after it had closed its stream and was ended; the trace is whole',
  ]);
  expect((await readTrace(place.out)).integrity.complete).toBe(true);
});

test('a killed orchestrator takes its worker along', async () => {
  const place = workplace(READY_AFTER_FIRST_STEP);
  const { started, pid } = await startUntilReady(place);
  expect(sidecarsOf(pid)).toHaveLength(1);
  started.kill('SIGKILL');
  await started;
  await untilGone(pid);
  const trace = await readTrace(place.out);
  expect(trace.footer).toBeNull();
  expect(trace.integrity.complete).toBe(false);
});

test('a full disk is said to be full and leaves no worker', async () => {
  const place = workplace('train(steps=1000)');
  const started = startMemtracker(['trace', '--out', '/dev/full', '--', 'train.py'], place);
  const result = await started;
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain(
    'the disk is full; free some space or choose another place with --out',
  );
  await untilGone(started.pid as number);
  expect(readdirSync(place.sockets)).toEqual([]);
});

test('a disk that fills up during the run keeps what fitted', async (context) => {
  const disk = temporaryFolder();
  const mounted = await execa('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', disk], {
    reject: false,
  });
  if (mounted.exitCode !== 0) context.skip('a tmpfs cannot be mounted here (not root)');
  try {
    const place = workplace('train(steps=3000)');
    const out = join(disk, 'run.mtrace');
    const started = startMemtracker(
      ['trace', '--steps', '3000', '--out', out, '--', 'train.py'],
      place,
    );
    const result = await started;
    expect(result.exitCode).toBe(3);
    expect(result.stderr).toContain('the disk is full');
    await untilGone(started.pid as number);
    const trace = await readTrace(out);
    expect(trace.storageCount).toBeGreaterThan(10);
    expect(trace.integrity.complete).toBe(false);
  } finally {
    await execa('umount', [disk]);
  }
});

test('a folder that is not there is named', async () => {
  const place = workplace('train()');
  const result = await memtracker(
    ['trace', '--out', 'no/such/run.mtrace', '--', 'train.py'],
    place,
  );
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('choose another place with --out');
  expect(existsSync(join(place.cwd, 'no'))).toBe(false);
});

test.each([
  [['--rank', '8', '--world', '8'], '--rank 8 is not in a world of 8; ranks are 0 to 7'],
  [['--gpu', 'h1000'], '"h1000" is not a known GPU'],
  [['--world', '0'], '--world must be a whole number of at least 1, got "0"'],
  [['--world', 'eight'], '--world must be a whole number, got "eight"'],
  [['--option', 'routing'], '--option must be written NAME=VALUE'],
  [['--option', 'mood=good'], 'framework script has no option "mood"'],
  [['--framework', 'jax'], 'no adapter for framework "jax"; there are: '],
  [['--checkout', '.'], '--framework script takes no --checkout'],
  [['--framework', 'torchtitan'], 'needs --checkout DIR'],
  [['--framework', 'torchtitan', '--checkout', 'nowhere'], 'there is no such folder'],
  [['--framework', 'torchtitan', '--checkout', '.'], 'is not a checkout of TorchTitan'],
  [['--stepz', '3'], "unknown option '--stepz' (Did you mean --steps?)"],
])('%j is refused before anything runs', async (arguments_, sentence) => {
  const place = workplace('train()');
  const result = await memtracker(['trace', ...arguments_, '--', 'train.py'], place);
  expect(result.exitCode).toBe(3);
  expect(result.stdout).toBe('');
  expect(result.stderr).toContain(sentence);
  expect(result.stderr.split('\n')).toHaveLength(1);
  expect(readdirSync(place.cwd).sort()).toEqual(['train.py', 'training.py']);
});

test('nothing after -- says what belongs there', async () => {
  const result = await memtracker(['trace']);
  expect(result.exitCode).toBe(3);
  expect(result.stderr).toContain('nothing to run: write -- and then SCRIPT.py');
});
