// Columns of whole numbers as LEB128 varints; exact up to 2^53. Used by the writer and, bundled, by the page.

export class VarintWriter {
  #bytes = new Uint8Array(1 << 16);
  length = 0;

  /** @param value a whole number, not negative */
  push(value: number): void {
    if (this.length + 10 > this.#bytes.length) {
      const larger = new Uint8Array(this.#bytes.length * 2);
      larger.set(this.#bytes);
      this.#bytes = larger;
    }
    let rest = value;
    while (rest >= 128) {
      this.#bytes[this.length++] = (rest % 128) + 128;
      rest = Math.floor(rest / 128);
    }
    this.#bytes[this.length++] = rest;
  }

  pushSigned(value: number): void {
    this.push(value >= 0 ? value * 2 : -value * 2 - 1);
  }

  bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.length);
  }
}

/** Reads `count` varints from the start of `bytes`. */
export function readVarints(bytes: Uint8Array, count: number): Float64Array {
  const values = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    let byte = bytes[at++];
    if (byte < 128) {
      values[i] = byte;
      continue;
    }
    let value = byte - 128;
    let factor = 128;
    do {
      byte = bytes[at++];
      value += (byte & 127) * factor;
      factor *= 128;
    } while (byte >= 128);
    values[i] = value;
  }
  return values;
}

/** Undoes the zigzag of {@link VarintWriter.pushSigned}. */
export function unzigzag(value: number): number {
  return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
}
