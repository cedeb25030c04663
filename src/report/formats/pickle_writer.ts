// Writes Python pickles, protocol 4, of plain values: dict, list, tuple of two, str, int, float, bool, None. Only opcodes that
// pytorch.org/memory_viz reads, too (torch/utils/viz/MemoryViz.js, function unpickle; protocol 5 shows an empty page there).
// Values that occur often are written once and referred to.

const PROTO = 0x80;
const STOP = 0x2e;
const MARK = 0x28;
const EMPTY_DICT = 0x7d;
const SETITEMS = 0x75;
const EMPTY_LIST = 0x5d;
const APPENDS = 0x65;
const TUPLE2 = 0x86;
const SHORT_BINUNICODE = 0x8c;
const BINUNICODE = 0x58;
const BININT = 0x4a;
const BININT1 = 0x4b;
const BININT2 = 0x4d;
const LONG1 = 0x8a;
const BINFLOAT = 0x47;
const NEWTRUE = 0x88;
const NEWFALSE = 0x89;
const NONE = 0x4e;
const MEMOIZE = 0x94;
const BINGET = 0x68;
const LONG_BINGET = 0x6a;

/** Python's own pickler appends in groups of this size; the page passes each group as arguments of one call. */
const APPEND_GROUP = 1000;
const CHUNK_BYTES = 1 << 16;

const encoder = new TextEncoder();

/** A value that is written once and referred to afterwards. The same object must be passed each time. */
export class Shared {
  readonly write: (pickle: PickleWriter) => void;
  constructor(write: (pickle: PickleWriter) => void) {
    this.write = write;
  }
}

export class PickleWriter {
  readonly #chunks: Uint8Array[] = [];
  #buffer = new Uint8Array(CHUNK_BYTES);
  #length = 0;
  #memoized = 0;
  readonly #texts = new Map<string, number>();
  readonly #shared = new Map<Shared, number>();

  constructor() {
    this.#byte(PROTO);
    this.#byte(4);
  }

  /** Full chunks so far; they are handed out once. */
  drain(): Uint8Array[] {
    return this.#chunks.splice(0);
  }

  /** Ends the pickle and hands out what is left. */
  finish(): Uint8Array[] {
    this.#byte(STOP);
    this.#chunks.push(this.#buffer.subarray(0, this.#length));
    this.#buffer = new Uint8Array(0);
    this.#length = 0;
    return this.drain();
  }

  dict(entries: Readonly<Record<string, () => void>>): void {
    this.#byte(EMPTY_DICT);
    this.#byte(MARK);
    for (const key of Object.keys(entries)) {
      this.text(key);
      entries[key]();
    }
    this.#byte(SETITEMS);
  }

  /** Each call of the iterable writes one element. */
  list(elements: Iterable<() => void>): void {
    this.#byte(EMPTY_LIST);
    let inGroup = 0;
    for (const element of elements) {
      if (inGroup === 0) this.#byte(MARK);
      element();
      inGroup++;
      if (inGroup === APPEND_GROUP) {
        this.#byte(APPENDS);
        inGroup = 0;
      }
    }
    if (inGroup > 0) this.#byte(APPENDS);
  }

  pair(first: number, second: number): void {
    this.int(first);
    this.int(second);
    this.#byte(TUPLE2);
  }

  text(value: string): void {
    const known = this.#texts.get(value);
    if (known !== undefined) {
      this.#get(known);
      return;
    }
    const bytes = encoder.encode(value);
    if (bytes.length < 256) {
      this.#byte(SHORT_BINUNICODE);
      this.#byte(bytes.length);
    } else {
      this.#byte(BINUNICODE);
      this.#uint(bytes.length, 4);
    }
    for (const byte of bytes) this.#byte(byte);
    this.#texts.set(value, this.#memoize());
  }

  /** @param value a whole number of at most 53 bits */
  int(value: number): void {
    if (value >= 0 && value < 0x100) {
      this.#byte(BININT1);
      this.#byte(value);
    } else if (value >= 0 && value < 0x10000) {
      this.#byte(BININT2);
      this.#uint(value, 2);
    } else if (value >= -0x80000000 && value < 0x80000000) {
      this.#byte(BININT);
      this.#uint(value < 0 ? value + 0x100000000 : value, 4);
    } else {
      this.#byte(LONG1);
      this.#byte(8);
      const big = BigInt.asUintN(64, BigInt(value));
      this.#uint(Number(big & 0xffffffffn), 4);
      this.#uint(Number(big >> 32n), 4);
    }
  }

  float(value: number): void {
    this.#byte(BINFLOAT);
    const view = new DataView(new ArrayBuffer(8));
    view.setFloat64(0, value);
    for (let i = 0; i < 8; i++) this.#byte(view.getUint8(i));
  }

  flag(value: boolean): void {
    this.#byte(value ? NEWTRUE : NEWFALSE);
  }

  none(): void {
    this.#byte(NONE);
  }

  shared(value: Shared): void {
    const known = this.#shared.get(value);
    if (known !== undefined) {
      this.#get(known);
      return;
    }
    value.write(this);
    this.#shared.set(value, this.#memoize());
  }

  #memoize(): number {
    this.#byte(MEMOIZE);
    return this.#memoized++;
  }

  #get(index: number): void {
    if (index < 256) {
      this.#byte(BINGET);
      this.#byte(index);
    } else {
      this.#byte(LONG_BINGET);
      this.#uint(index, 4);
    }
  }

  #uint(value: number, bytes: number): void {
    let rest = value;
    for (let i = 0; i < bytes; i++) {
      this.#byte(rest % 256);
      rest = Math.floor(rest / 256);
    }
  }

  #byte(value: number): void {
    if (this.#length === CHUNK_BYTES) {
      this.#chunks.push(this.#buffer);
      this.#buffer = new Uint8Array(CHUNK_BYTES);
      this.#length = 0;
    }
    this.#buffer[this.#length++] = value;
  }
}
