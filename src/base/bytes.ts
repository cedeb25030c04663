// Sizes are whole bytes inside the program and binary units (KiB, MiB, GiB) where a person reads them.

import type { Brand } from './brand.ts';

/** A whole, non-negative number of bytes. Exact up to 2^53 (8 PiB). */
export type Bytes = Brand<number, 'Bytes'>;

export const KiB = 1024;
export const MiB = 1024 * KiB;
export const GiB = 1024 * MiB;
export const TiB = 1024 * GiB;

/** Brands `value` as bytes. @throws RangeError if it is negative, fractional or not a safe integer. */
export function bytes(value: number): Bytes {
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new RangeError(`a size must be a whole number of bytes, got ${value}`);
  }
  return value as Bytes;
}

/** Rounds `value` up to the next multiple of `step` (any positive integer). */
export function roundUp(value: number, step: number): number {
  const rest = value % step;
  return rest === 0 ? value : value + (step - rest);
}

/** `1536` -> `1.50 KiB`; two decimals as PyTorch prints them, plain bytes below 1 KiB. */
export function formatBytes(value: number): string {
  const sign = value < 0 ? '-' : '';
  const size = Math.abs(value);
  if (size < KiB) return `${sign}${size} B`;
  if (size < MiB) return `${sign}${(size / KiB).toFixed(2)} KiB`;
  if (size < GiB) return `${sign}${(size / MiB).toFixed(2)} MiB`;
  return `${sign}${(size / GiB).toFixed(2)} GiB`;
}

/** Bytes as GiB with a fixed number of decimals and no unit, for table columns headed GiB. */
export function formatGiB(value: number, decimals = 2): string {
  return (value / GiB).toFixed(decimals);
}

const UNITS: Readonly<Record<string, number>> = {
  b: 1,
  kib: KiB,
  mib: MiB,
  gib: GiB,
  tib: TiB,
  kb: 1e3,
  mb: 1e6,
  gb: 1e9,
  tb: 1e12,
};

/**
 * Parses `4096`, `512MiB`, `1.5 GiB` or (decimal units) `80GB`.
 * @throws RangeError naming the text and the accepted units.
 */
export function parseBytes(text: string): Bytes {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text);
  const factor = match ? UNITS[match[2] === '' ? 'b' : match[2].toLowerCase()] : undefined;
  if (!match || factor === undefined) {
    throw new RangeError(
      `"${text}" is not a size; write bytes or a number with B, KiB, MiB, GiB, TiB, KB, MB, GB or TB`,
    );
  }
  return bytes(Math.round(Number(match[1]) * factor));
}
