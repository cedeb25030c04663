// The bridge with a real interpreter: lifetimes, errors, endings.

import { mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { MiB } from '../../src/base/bytes.ts';
import { openBridge } from '../../src/scenario/bridge.ts';
import { BridgeClosedError, PythonError } from '../../src/sidecar/pythonia.ts';

function childProcesses(): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        return (
          readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ')[1] ===
          String(process.pid)
        );
      } catch {
        return false;
      }
    })
    .filter((pid) => {
      try {
        return readlinkSync(`/proc/${pid}/exe`).includes('python');
      } catch {
        return false;
      }
    })
    .map(Number);
}

test('a tensor is freed when it is released, not when V8 collects garbage', async () => {
  await using bridge = await openBridge();
  const uint8 = await bridge.torch.uint8;
  await bridge.fake(async ({ torch }) => {
    for (let i = 0; i < 4; i++) {
      const tensor = await torch.empty$(32 * MiB, { dtype: uint8, device: 'cuda' });
      await bridge.release(tensor);
    }
  });
  const { tensor } = await bridge.report();
  expect(tensor.peak.bytes).toBe(32 * MiB);
  expect(tensor.final).toBe(0);
});

test('what a scope keeps outlives it', async () => {
  await using bridge = await openBridge();
  const uint8 = await bridge.torch.uint8;
  await bridge.fake(async ({ torch, keep }) => {
    keep(await torch.empty$(2 * MiB, { dtype: uint8, device: 'cuda' }));
    await torch.empty$(4 * MiB, { dtype: uint8, device: 'cuda' });
  });
  const { tensor } = await bridge.report();
  expect(tensor.peak.bytes).toBe(6 * MiB);
  expect(tensor.final).toBe(2 * MiB);
});

test('the input of a collective lives until it is waited for', async () => {
  await using bridge = await openBridge({ world: 8 });
  const uint8 = await bridge.torch.uint8;
  await bridge.fake(async ({ torch }) => {
    const shard = await torch.empty$(8 * MiB, { dtype: uint8, device: 'cuda' });
    const gathered = await bridge.collective('all_gather', shard);
    await bridge.release(shard);
    const other = await torch.empty$(8 * MiB, { dtype: uint8, device: 'cuda' });
    await bridge.waitAll();
    await bridge.release(other, gathered);
  });
  // 8 MiB of input that only the pending work refers to, 64 MiB of output, 8 MiB beside them.
  expect((await bridge.report()).tensor.peak.bytes).toBe(80 * MiB);
});

test('a Python exception arrives with its traceback and the bridge goes on', async () => {
  await using bridge = await openBridge();
  const failure = await bridge.fake(async ({ torch }) => {
    try {
      await torch.empty$([-1], { device: 'cuda' });
      return undefined;
    } catch (error) {
      return error;
    }
  });
  expect(failure).toBeInstanceOf(PythonError);
  expect((failure as PythonError).message).toContain('negative dimension');
  expect((failure as PythonError).traceback).toContain('Traceback (most recent call last)');
  const builtins = await bridge.import('builtins');
  expect(await builtins.str(await bridge.torch.__version__)).toContain('2.14.1');
});

test('a call that hangs is ended by the time-out', async () => {
  const bridge = await openBridge({ callTimeout: 15_000 });
  const time = await bridge.import('time');
  await expect(time.sleep(600)).rejects.toThrow(/did not return within 15 s/);
  await expect(time.time()).rejects.toBeInstanceOf(BridgeClosedError);
  await bridge.close();
  expect(childProcesses()).toEqual([]);
});

test('an interpreter that dies under a call is said to have died', async () => {
  const bridge = await openBridge();
  const os = await bridge.import('os');
  await expect(os._exit(7)).rejects.toThrow(/ended by itself \(status 7\)/);
  await bridge.close();
});

test('misuse of the ledger throws before anything is recorded', async () => {
  await using bridge = await openBridge();
  await bridge.externalAlloc('context', 4 * MiB, { category: 'context' });
  await expect(bridge.externalAlloc('context', 1, { category: 'context' })).rejects.toThrow(
    'live already',
  );
  await expect(bridge.externalAlloc('x', -1, { category: 'context' })).rejects.toThrow(
    'not negative',
  );
  await expect(bridge.externalFree('y')).rejects.toThrow('is not live');
  await expect(bridge.phase('', {}, async () => {})).rejects.toThrow('must not be empty');
  const trace = await bridge.trace();
  expect(trace.rare.filter((event) => event.type === 'external_alloc')).toHaveLength(1);
});

test('twenty bridges leave no process and no socket behind', { timeout: 600_000 }, async () => {
  const runtime = mkdtempSync(join(tmpdir(), 'bridges-'));
  const env = { ...process.env, XDG_RUNTIME_DIR: runtime };
  try {
    for (let i = 0; i < 20; i++) {
      const bridge = await openBridge({ env });
      expect(readdirSync(runtime)).toHaveLength(1);
      await bridge.close();
    }
    expect(childProcesses()).toEqual([]);
    expect(readdirSync(runtime)).toEqual([]);
  } finally {
    rmSync(runtime, { recursive: true, force: true });
  }
});
