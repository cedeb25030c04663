import { expect, test } from 'vitest';
import { MiB, TiB } from '../base/bytes.ts';
import { deviceAddresses, virtualAddresses } from './driver.ts';

test('addresses go up and never come twice, past the end of the first range too', () => {
  const addresses = deviceAddresses(0);
  let last = 0;
  // A thousand flushed and refilled caches of 80 GiB: far more than the 4 TiB of the range.
  for (let i = 0; i < 1000; i++) {
    const address = addresses.take(80 * 1024 * MiB);
    expect(address).toBeGreaterThan(last);
    expect(Number.isSafeInteger(address)).toBe(true);
    last = address;
  }
});

test('a hundred expandable segments of a 4 TiB device have room', () => {
  const addresses = virtualAddresses();
  for (let i = 0; i < 100; i++) addresses.take(4.5 * TiB);
});
