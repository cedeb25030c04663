import { expect, test } from 'vitest';
import { GiB, MiB } from '../base/bytes.ts';
import {
  CommunicatorLedger,
  calibratedProfile,
  type MemoryAccount,
  NcclOutOfMemory,
  p2pProfile,
  sharedNetProfile,
} from './profile.ts';

class Purse implements MemoryAccount {
  used = 0;
  readonly size: number;

  constructor(size: number) {
    this.size = size;
  }

  tryTake(bytes: number): boolean {
    if (this.used + bytes > this.size) return false;
    this.used += bytes;
    return true;
  }

  give(bytes: number): void {
    this.used -= bytes;
  }
}

test('a 16-channel shared network pool is 64 MiB', () => {
  // elfiegg/memTracker, Kimi K3 scenario: three communicators with it raise the peak by 0.188 GiB.
  expect(((3 * sharedNetProfile(16).atFirstUse) / GiB).toFixed(3)).toBe('0.188');
});

test('pools are taken at the first collective and found again, temporaries end with their collective', () => {
  const purse = new Purse(GiB);
  const ledger = new CommunicatorLedger(purse);
  ledger.register('world', p2pProfile(4));
  expect(purse.used).toBe(0);
  const first = ledger.begin('world', [2 * MiB]);
  expect(purse.used).toBe(50 * MiB);
  const second = ledger.begin('world', [2 * MiB]);
  expect(purse.used).toBe(52 * MiB);
  ledger.complete(first);
  ledger.complete(first);
  ledger.complete(second);
  expect(purse.used).toBe(48 * MiB);
  ledger.destroy('world');
  expect(purse.used).toBe(0);
});

test('a communicator with pending collectives cannot be destroyed', () => {
  const ledger = new CommunicatorLedger(new Purse(GiB));
  ledger.register('world', p2pProfile(4));
  const pending = ledger.begin('world');
  expect(() => ledger.destroy('world')).toThrow(/1 pending/);
  ledger.complete(pending);
  ledger.destroy('world');
  expect(() => ledger.begin('world')).toThrow(/not registered/);
});

test('an allocation that fails half-way leaves nothing behind', () => {
  const purse = new Purse(50 * MiB);
  const ledger = new CommunicatorLedger(purse);
  ledger.register('world', p2pProfile(4));
  expect(() => ledger.begin('world', [1 * MiB, 4 * MiB])).toThrow(NcclOutOfMemory);
  expect(purse.used).toBe(0);
  ledger.begin('world', [1 * MiB]);
  expect(purse.used).toBe(49 * MiB);
});

test('zero means omitted', () => {
  const ledger = new CommunicatorLedger(new Purse(GiB));
  ledger.register('tensor parallel', calibratedProfile({ provenance: 'not measured' }));
  ledger.register('data parallel', calibratedProfile({ atInit: MiB, provenance: '2 x H100' }));
  expect(ledger.omitted()).toEqual(['tensor parallel']);
  expect(() => calibratedProfile({ atInit: MiB, provenance: ' ' })).toThrow(/provenance/);
});
