// Growable typed columns. A trace of a million events is kept as a few flat arrays instead of a million objects.

type Numeric = Uint8Array | Uint16Array | Uint32Array | Float64Array;

abstract class Column<A extends Numeric> {
  protected values: A;
  length = 0;

  protected constructor(first: A) {
    this.values = first;
  }

  protected abstract allocate(capacity: number): A;

  push(value: number): void {
    if (this.length === this.values.length) {
      const larger = this.allocate(this.length * 2);
      larger.set(this.values as never);
      this.values = larger;
    }
    this.values[this.length++] = value;
  }

  /** The filled part, without a copy. Valid until the next {@link push}. */
  view(): A {
    return this.values.subarray(0, this.length) as A;
  }
}

const FIRST_CAPACITY = 1024;

export class Uint8Column extends Column<Uint8Array> {
  constructor() {
    super(new Uint8Array(FIRST_CAPACITY));
  }
  protected override allocate(capacity: number): Uint8Array {
    return new Uint8Array(capacity);
  }
}

export class Uint32Column extends Column<Uint32Array> {
  constructor() {
    super(new Uint32Array(FIRST_CAPACITY));
  }
  protected override allocate(capacity: number): Uint32Array {
    return new Uint32Array(capacity);
  }
}

/** For sizes: exact up to 2^53 bytes. */
export class Float64Column extends Column<Float64Array> {
  constructor() {
    super(new Float64Array(FIRST_CAPACITY));
  }
  protected override allocate(capacity: number): Float64Array {
    return new Float64Array(capacity);
  }
}
