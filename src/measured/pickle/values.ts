// What a pickle can hold once it is read here: scalars and three plain containers. There is no class instance, no callable and
// no reference to a Python module among them, because the machine refuses every opcode that could make one.

/** Absent from its parent on purpose: the sink took the value (a trace entry that went into columns). */
export const TAKEN: unique symbol = Symbol('taken');

export type PickleScalar = null | boolean | number | bigint | string | Uint8Array;

/** A value made by the sink in place of a container, for example an interned stack frame. */
export abstract class PickleRecord {
  /** What stands for it where unknown fields are kept. */
  abstract plain(): Plain;
}

export type PickleValue =
  | PickleScalar
  | PickleList
  | PickleDict
  | PickleTuple
  | PickleRecord
  | typeof TAKEN;

/** A run of rows that the sink took out of a list, in order. */
export interface RowRun {
  first: number;
  count: number;
}

/** A Python list while it is being read. */
export class PickleList {
  readonly items: PickleValue[] = [];
  /** Memo slot, -1 when the list was not memoized. */
  slot = -1;
  /** Elements that the sink took; they are not in `items`. */
  run: RowRun | undefined = undefined;
}

/** A Python dict (or set, with `null` values) while it is being read; the last value of a repeated key counts. */
export class PickleDict {
  readonly keys: PickleValue[] = [];
  readonly values: PickleValue[] = [];
  slot = -1;

  /** Value of a text key; undefined when absent. Meant for records of a few keys. */
  get(key: string): PickleValue | undefined {
    for (let i = this.keys.length - 1; i >= 0; i--) if (this.keys[i] === key) return this.values[i];
    return undefined;
  }
}

/** A Python tuple. */
export class PickleTuple {
  readonly items: readonly PickleValue[];
  slot = -1;

  constructor(items: readonly PickleValue[]) {
    this.items = items;
  }
}

export type Plain =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array
  | Plain[]
  | { [key: string]: Plain };

const MAX_PLAIN_DEPTH = 64;

/**
 * Lists, tuples and dicts as arrays and null-prototype objects; a record becomes its own enumerable fields.
 * @throws RangeError when nested deeper than 64 levels (or cyclic).
 */
export function toPlain(value: PickleValue, depth = 0): Plain {
  if (depth > MAX_PLAIN_DEPTH) throw new RangeError(`nested deeper than ${MAX_PLAIN_DEPTH} levels`);
  if (value === TAKEN) return null;
  if (value instanceof PickleList || value instanceof PickleTuple) {
    return value.items.map((item) => toPlain(item, depth + 1));
  }
  if (value instanceof PickleDict) {
    // No prototype: a key named __proto__ is data here, not a way in.
    const plain = Object.create(null) as { [key: string]: Plain };
    for (let i = 0; i < value.keys.length; i++) {
      plain[plainKey(value.keys[i])] = toPlain(value.values[i], depth + 1);
    }
    return plain;
  }
  if (value instanceof PickleRecord) return value.plain();
  return value as PickleScalar;
}

function plainKey(key: PickleValue): string {
  if (typeof key === 'string') return key;
  if (key instanceof PickleTuple) return key.items.map(plainKey).join(',');
  return String(key);
}
