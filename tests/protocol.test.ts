import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { pythonProtocol } from '../scripts/generate_protocol.ts';

test('the Python protocol is the one generated from the event table', () => {
  const path = fileURLToPath(new URL('../python/memtracker_sidecar/protocol.py', import.meta.url));
  expect(readFileSync(path, 'utf8')).toBe(pythonProtocol());
});
