// A set of address ranges [start, end), kept sorted and merged: what of an expandable segment is mapped.

export interface AddressRange {
  readonly start: number;
  readonly end: number;
}

export class AddressRanges {
  readonly #ranges: AddressRange[] = [];

  /** Sum of all ranges, bytes. */
  get bytes(): number {
    return this.#ranges.reduce((sum, range) => sum + range.end - range.start, 0);
  }

  list(): readonly AddressRange[] {
    return this.#ranges;
  }

  /** The range that holds all of [start, end), or undefined. */
  covering(start: number, end: number): AddressRange | undefined {
    const range = this.#ranges[this.#indexOf(start)];
    return range !== undefined && range.start <= start && end <= range.end ? range : undefined;
  }

  /** Adds [start, end). False, and nothing changes, when it overlaps what is there. */
  add(start: number, end: number): boolean {
    let index = this.#indexOf(start);
    const before = this.#ranges[index];
    const after = this.#ranges[index + 1];
    if (before !== undefined && before.end > start) return false;
    if (after !== undefined && after.start < end) return false;
    let merged: AddressRange = { start, end };
    let drop = 0;
    if (after !== undefined && after.start === end) {
      merged = { start, end: after.end };
      drop++;
    }
    if (before !== undefined && before.end === start) {
      merged = { start: before.start, end: merged.end };
      drop++;
    } else index++;
    this.#ranges.splice(index, drop, merged);
    return true;
  }

  /** Takes [start, end) out. False, and nothing changes, when it is not all there. */
  remove(start: number, end: number): boolean {
    const range = this.covering(start, end);
    if (range === undefined) return false;
    const parts: AddressRange[] = [];
    if (range.start < start) parts.push({ start: range.start, end: start });
    if (end < range.end) parts.push({ start: end, end: range.end });
    this.#ranges.splice(this.#indexOf(start), 1, ...parts);
    return true;
  }

  /** Index of the last range that starts at or before `address`; -1 when none does. */
  #indexOf(address: number): number {
    let low = 0;
    let high = this.#ranges.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.#ranges[middle].start <= address) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}
