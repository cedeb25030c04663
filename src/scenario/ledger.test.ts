import { expect, test } from 'vitest';
import { Ledger } from './ledger.ts';

test('misuse throws before anything changes', () => {
  const ledger = new Ledger();
  ledger.add(ledger.checkAlloc('context', 4096, 'context'));
  expect(() => ledger.checkAlloc('context', 1, 'context')).toThrow('live already');
  expect(() => ledger.checkAlloc('other', -1, 'context')).toThrow('not negative');
  expect(() => ledger.checkAlloc('other', 1.5, 'context')).toThrow('whole');
  expect(() => ledger.checkAlloc('', 1, 'context')).toThrow('must not be empty');
  expect(() => ledger.checkAlloc('other', 1, ' ')).toThrow('must not be empty');
  expect(() => ledger.checkFree('other')).toThrow('is not live');
  expect(ledger.live()).toEqual([{ id: 'context', bytes: 4096, category: 'context' }]);
});

test('an id can be used again once it was freed', () => {
  const ledger = new Ledger();
  ledger.add(ledger.checkAlloc('workspace', 1, 'workspace'));
  ledger.remove('workspace');
  expect(ledger.checkAlloc('workspace', 2, 'workspace').bytes).toBe(2);
});
