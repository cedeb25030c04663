import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { TraceCache } from './trace_cache.ts';

const folder = mkdtempSync(join(tmpdir(), 'memtracker-cache-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test('half-made traces go when their process of this machine is gone', async () => {
  const cache = new TraceCache(folder);
  const running = await cache.partial('a'.repeat(64));
  writeFileSync(running, '');
  // Above the largest process id of Linux (2^22, man proc_sys_kernel).
  const gone = join(folder, `.b.4194305@${hostname()}.partial`);
  const elsewhere = join(folder, '.c.4194305@another-node.example.partial');
  for (const path of [gone, elsewhere]) writeFileSync(path, '');
  await cache.prune({});
  expect(
    readdirSync(folder)
      .map((name) => join(folder, name))
      .sort(),
  ).toEqual([running, elsewhere].sort());
});
