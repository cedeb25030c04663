// A reader of Python pickles that cannot run anything.
//
// `pickle.load` is a small stack machine that may import and call. This one builds lists, dicts, tuples and scalars only; an
// opcode that would import a name, call it or build an instance ends the reading with that name in the error (the list is
// REFUSED in opcodes.ts). It is fed in chunks, so a file never has to be in memory, and what it keeps is counted against
// limits, so a small hostile file cannot fill the memory either.
//
// A value is complete when its parent takes it. At that moment the sink sees it and may put a smaller record in its place (an
// interned frame) or take it away (a trace entry that went into columns); the memo forgets the large form at once. That is
// what keeps five million trace entries in a few hundred MiB. The npm reader of this format, pickleparser 0.2.1, was not used:
// it wants the whole file in one buffer, keeps every object, and builds classes for names it does not know.

import { formatBytes, MiB } from '../../base/bytes.ts';
import { UserError } from '../../base/errors.ts';
import { MAX_PROTOCOL, Op, REFUSED } from './opcodes.ts';
import { PickleDict, PickleList, PickleTuple, type PickleValue, TAKEN } from './values.ts';

/** What looks at every container when it is complete. */
export interface PickleSink {
  /**
   * `value` is complete and about to be stored in `parent`. Returns what to store instead, `value` itself to keep it, or
   * `TAKEN` (only when the parent is a list) to store nothing.
   */
  complete(
    value: PickleList | PickleDict | PickleTuple,
    parent: PickleList | PickleDict | PickleTuple,
  ): PickleValue;
}

export interface PickleLimits {
  /** Values on the stack at once. Python's own pickler needs about 2,000 (it writes lists in batches of 1,000). */
  readonly stack: number;
  /** Memo slots. */
  readonly memo: number;
  /** One string or bytes object, in bytes. */
  readonly text: number;
  /** Estimated bytes of everything that is kept. */
  readonly kept: number;
  /** Bytes read, after decompression. */
  readonly bytes: number;
}

export const DEFAULT_PICKLE_LIMITS: PickleLimits = {
  stack: 1 << 21,
  memo: 1 << 27,
  text: 16 * MiB,
  kept: 1400 * MiB,
  bytes: 64 * 1024 * MiB,
};

const LINE_LIMIT = 4096;
const LONG_LIMIT = 1024;

// Rough sizes of V8 objects, for the `kept` limit only.
const DICT_BYTES = 160;
const LIST_BYTES = 88;
const SLOT_BYTES = 16;
const STRING_BYTES = 24;

/** Bytes that follow each opcode at least; -1: a text line. */
const OPERAND = new Int8Array(256);
for (const op of [Op.INT, Op.LONG, Op.FLOAT, Op.STRING, Op.UNICODE, Op.GET, Op.PUT])
  OPERAND[op] = -1;
for (const op of [
  Op.BININT1,
  Op.BINGET,
  Op.BINPUT,
  Op.PROTO,
  Op.LONG1,
  Op.SHORT_BINSTRING,
  Op.SHORT_BINUNICODE,
  Op.SHORT_BINBYTES,
])
  OPERAND[op] = 1;
OPERAND[Op.BININT2] = 2;
for (const op of [
  Op.BININT,
  Op.LONG_BINGET,
  Op.LONG_BINPUT,
  Op.BINSTRING,
  Op.BINUNICODE,
  Op.BINBYTES,
  Op.LONG4,
])
  OPERAND[op] = 4;
for (const op of [Op.BINFLOAT, Op.FRAME, Op.BINUNICODE8, Op.BINBYTES8, Op.BYTEARRAY8])
  OPERAND[op] = 8;

/**
 * Reads one pickle.
 * @throws UserError `PICKLE_REFUSED` (names the import), `PICKLE_MALFORMED`, `PICKLE_TRUNCATED`, `PICKLE_LIMIT`.
 */
export class PickleMachine {
  readonly #sink: PickleSink;
  readonly #limits: PickleLimits;
  readonly #stack: PickleValue[] = [];
  readonly #marks: number[] = [];
  readonly #memo = new Memo();
  readonly #shortTexts = new ShortTexts();
  #carry: Buffer | undefined;
  /** Bytes that have to be there before another opcode can be read. */
  #wanted = 0;
  #offset = 0;
  #kept = 0;
  #started = false;
  /** A refused opcode whose name has not arrived whole yet. */
  #pendingRefusal: string | undefined;
  #done = false;

  constructor(sink: PickleSink, limits: Partial<PickleLimits> = {}) {
    this.#sink = sink;
    this.#limits = { ...DEFAULT_PICKLE_LIMITS, ...limits };
  }

  /** True once the pickle's STOP has been read; bytes after it are not looked at (as Python does). */
  get done(): boolean {
    return this.#done;
  }

  /** Estimated bytes of the containers and strings that are kept. */
  get keptBytes(): number {
    return this.#kept;
  }

  /** Takes the next bytes of the file. `chunk` may be reused by the caller afterwards. */
  feed(chunk: Buffer): void {
    if (this.#done) return;
    let buffer = chunk;
    if (this.#carry !== undefined) {
      buffer = Buffer.concat([this.#carry, chunk]);
      this.#carry = undefined;
    }
    if (buffer.length >= this.#wanted) {
      this.#wanted = 0;
      const used = this.#run(buffer);
      this.#offset += used;
      if (this.#offset > this.#limits.bytes) {
        throw this.#limit(`more than ${formatBytes(this.#limits.bytes)} of pickle`);
      }
      buffer = buffer.subarray(used);
    }
    if (!this.#done && buffer.length > 0) this.#carry = Buffer.from(buffer);
  }

  /** The value of the pickle. Call after the last `feed`. */
  finish(): PickleValue {
    if (!this.#done) {
      if (this.#pendingRefusal !== undefined) {
        throw this.#refusal(this.#pendingRefusal, undefined, 0);
      }
      const at = this.#offset + (this.#carry?.length ?? 0);
      throw new UserError(
        'PICKLE_TRUNCATED',
        at === 0
          ? 'the file is empty'
          : `the pickle is cut off after ${at} bytes, before its end mark; copy the file again or dump the snapshot again`,
      );
    }
    return this.#stack[0];
  }

  /** Runs every opcode that is whole in `buffer`. Returns the number of bytes used. */
  #run(buffer: Buffer): number {
    const stack = this.#stack;
    const memo = this.#memo;
    const end = buffer.length;
    let position = 0;
    while (position < end) {
      const start = position;
      const op = buffer[position++];
      if (!this.#started && op !== Op.PROTO && !LOOKS_LIKE_PROTOCOL_0.has(op)) {
        throw this.#malformed(start, `starts with byte 0x${op.toString(16).padStart(2, '0')}`);
      }
      this.#started = true;
      const operand = OPERAND[op];
      let line = '';
      if (operand > 0) {
        if (position + operand > end) return start;
      } else if (operand < 0) {
        const newline = buffer.indexOf(0x0a, position);
        if (newline < 0 || newline - position > LINE_LIMIT) {
          if (end - position > LINE_LIMIT)
            throw this.#limit(`a line longer than ${LINE_LIMIT} bytes`);
          return start;
        }
        line = buffer.toString('latin1', position, newline);
        position = newline + 1;
      }
      switch (op) {
        // ---- references, by far the most frequent
        case Op.BINGET:
          stack.push(this.#recall(buffer[position++], start));
          break;
        case Op.LONG_BINGET:
          stack.push(this.#recall(buffer.readUInt32LE(position), start));
          position += 4;
          break;
        case Op.GET:
          stack.push(this.#recall(this.#integer(line, start), start));
          break;
        case Op.MEMOIZE:
          this.#memoize(memo.size, start);
          break;
        case Op.BINPUT:
          this.#memoize(buffer[position++], start);
          break;
        case Op.LONG_BINPUT:
          this.#memoize(buffer.readUInt32LE(position), start);
          position += 4;
          break;
        case Op.PUT:
          this.#memoize(this.#integer(line, start), start);
          break;
        // ---- numbers
        case Op.BININT1:
          stack.push(buffer[position++]);
          break;
        case Op.BININT2:
          stack.push(buffer.readUInt16LE(position));
          position += 2;
          break;
        case Op.BININT:
          stack.push(buffer.readInt32LE(position));
          position += 4;
          break;
        case Op.LONG1: {
          const length = buffer[position];
          if (position + 1 + length > end) return this.#wait(start, position + 1 + length);
          stack.push(littleEndian(buffer, position + 1, length));
          position += 1 + length;
          break;
        }
        case Op.LONG4: {
          const length = buffer.readInt32LE(position);
          if (length < 0 || length > LONG_LIMIT) throw this.#limit(`an integer of ${length} bytes`);
          if (position + 4 + length > end) return this.#wait(start, position + 4 + length);
          stack.push(littleEndian(buffer, position + 4, length));
          position += 4 + length;
          break;
        }
        case Op.BINFLOAT:
          stack.push(buffer.readDoubleBE(position));
          position += 8;
          break;
        case Op.INT:
          stack.push(line === '00' ? false : line === '01' ? true : this.#number(line, start));
          break;
        case Op.LONG:
          stack.push(this.#number(line.replace(/L$/, ''), start));
          break;
        case Op.FLOAT:
          stack.push(this.#float(line, start));
          break;
        case Op.NONE:
          stack.push(null);
          break;
        case Op.NEWTRUE:
          stack.push(true);
          break;
        case Op.NEWFALSE:
          stack.push(false);
          break;
        // ---- text and bytes
        case Op.SHORT_BINUNICODE:
        case Op.SHORT_BINSTRING:
        case Op.SHORT_BINBYTES: {
          const length = buffer[position];
          const from = position + 1;
          if (from + length > end) return this.#wait(start, from + length);
          if (op === Op.SHORT_BINUNICODE) {
            if (length > ShortTexts.LONGEST) {
              this.#pushText(buffer.toString('utf8', from, from + length));
            } else {
              const known = this.#shortTexts.find(buffer, from, length);
              if (known === undefined) this.#pushText(this.#shortTexts.add(buffer, from, length));
              else stack.push(known);
            }
          } else this.#pushBytes(op === Op.SHORT_BINBYTES, buffer, from, length);
          position = from + length;
          break;
        }
        case Op.BINUNICODE:
        case Op.BINSTRING:
        case Op.BINBYTES:
        case Op.BINUNICODE8:
        case Op.BINBYTES8:
        case Op.BYTEARRAY8: {
          const length =
            operand === 8
              ? Number(buffer.readBigUInt64LE(position))
              : buffer.readUInt32LE(position);
          if (length > this.#limits.text) throw this.#limit(`a text of ${formatBytes(length)}`);
          const from = position + operand;
          if (from + length > end) return this.#wait(start, from + length);
          if (op === Op.BINUNICODE || op === Op.BINUNICODE8) {
            this.#pushText(buffer.toString('utf8', from, from + length));
          } else this.#pushBytes(op !== Op.BINSTRING, buffer, from, length);
          position = from + length;
          break;
        }
        case Op.STRING:
          if (!/^(['"]).*\1$/.test(line)) throw this.#malformed(start, 'a string without quotes');
          this.#pushText(line.slice(1, -1));
          break;
        case Op.UNICODE:
          this.#pushText(
            line.replace(/\\u([0-9a-fA-F]{4})/g, (_, hex: string) =>
              String.fromCharCode(Number.parseInt(hex, 16)),
            ),
          );
          break;
        // ---- containers
        case Op.EMPTY_DICT:
        case Op.EMPTY_SET:
          this.#keep(DICT_BYTES);
          stack.push(new PickleDict());
          break;
        case Op.EMPTY_LIST:
          this.#keep(LIST_BYTES);
          stack.push(new PickleList());
          break;
        case Op.EMPTY_TUPLE:
          this.#pushTuple(stack.length, start);
          break;
        case Op.TUPLE1:
          this.#pushTuple(stack.length - 1, start);
          break;
        case Op.TUPLE2:
          this.#pushTuple(stack.length - 2, start);
          break;
        case Op.TUPLE3:
          this.#pushTuple(stack.length - 3, start);
          break;
        case Op.TUPLE:
          this.#pushTuple(this.#mark(start), start);
          break;
        case Op.LIST: {
          const from = this.#mark(start);
          this.#keep(LIST_BYTES);
          const list = new PickleList();
          this.#append(list, from, start);
          stack.push(list);
          break;
        }
        case Op.DICT: {
          const from = this.#mark(start);
          this.#keep(DICT_BYTES);
          const dict = new PickleDict();
          this.#setItems(dict, from, start);
          stack.push(dict);
          break;
        }
        case Op.FROZENSET: {
          const from = this.#mark(start);
          this.#keep(DICT_BYTES);
          const set = new PickleDict();
          this.#addItems(set, from, start);
          stack.push(set);
          break;
        }
        case Op.APPEND:
          this.#append(this.#listAt(stack.length - 2, start), stack.length - 1, start);
          break;
        case Op.APPENDS: {
          const from = this.#mark(start);
          this.#append(this.#listAt(from - 1, start), from, start);
          break;
        }
        case Op.SETITEM:
          this.#setItems(this.#dictAt(stack.length - 3, start), stack.length - 2, start);
          break;
        case Op.SETITEMS: {
          const from = this.#mark(start);
          this.#setItems(this.#dictAt(from - 1, start), from, start);
          break;
        }
        case Op.ADDITEMS: {
          const from = this.#mark(start);
          this.#addItems(this.#dictAt(from - 1, start), from, start);
          break;
        }
        // ---- stack and frame
        case Op.MARK:
          this.#marks.push(stack.length);
          if (this.#marks.length > this.#limits.stack) throw this.#limit('marks nested too deep');
          break;
        case Op.POP:
          if (this.#marks.length > 0 && this.#marks[this.#marks.length - 1] === stack.length) {
            this.#marks.pop();
          } else if (stack.length === 0) throw this.#malformed(start, 'pops an empty stack');
          else stack.pop();
          break;
        case Op.POP_MARK:
          stack.length = this.#mark(start);
          break;
        case Op.DUP:
          stack.push(this.#top(start));
          break;
        case Op.PROTO:
          if (buffer[position] > MAX_PROTOCOL) {
            throw this.#malformed(start, `protocol ${buffer[position]}`);
          }
          position++;
          break;
        case Op.FRAME:
          position += 8;
          break;
        case Op.STOP:
          if (stack.length !== 1 || this.#marks.length > 0) {
            throw this.#malformed(start, `ends with ${stack.length} values on the stack`);
          }
          this.#done = true;
          return position;
        default: {
          const refused = REFUSED[op];
          if (refused === undefined) {
            throw this.#malformed(start, `byte 0x${op.toString(16).padStart(2, '0')} is no opcode`);
          }
          const name = importedName(op, buffer, position, stack);
          // The name may go on in the next chunk; wait for it unless it is longer than any name.
          if (name === undefined && end - position < LINE_LIMIT && buffer.length < LINE_LIMIT * 2) {
            this.#pendingRefusal = refused;
            return start;
          }
          throw this.#refusal(refused, name, start);
        }
      }
      if (stack.length > this.#limits.stack) {
        throw this.#limit(`more than ${this.#limits.stack} values on the stack`);
      }
    }
    return position;
  }

  #refusal(opcode: string, name: string | undefined, start: number): UserError {
    const what =
      name === undefined || name === '' ? `uses ${opcode}` : `asks for ${name} (${opcode})`;
    return new UserError(
      'PICKLE_REFUSED',
      `the pickle ${what} at byte ${this.#offset + start}. A memory snapshot holds lists, dicts and numbers only; ` +
        'nothing in the file was executed. Do not load it with pickle.load.',
    );
  }

  #wait(start: number, until: number): number {
    this.#wanted = until - start;
    return start;
  }

  #top(at: number): PickleValue {
    if (this.#stack.length === 0) throw this.#malformed(at, 'reads an empty stack');
    return this.#stack[this.#stack.length - 1];
  }

  #mark(at: number): number {
    const mark = this.#marks.pop();
    if (mark === undefined || mark > this.#stack.length) throw this.#malformed(at, 'has no mark');
    return mark;
  }

  #listAt(index: number, at: number): PickleList {
    const list = this.#stack[index];
    if (!(list instanceof PickleList)) throw this.#malformed(at, 'appends to what is not a list');
    return list;
  }

  #dictAt(index: number, at: number): PickleDict {
    const dict = this.#stack[index];
    if (!(dict instanceof PickleDict)) throw this.#malformed(at, 'sets items of what is no dict');
    return dict;
  }

  #recall(index: number, at: number): PickleValue {
    const value = this.#memo.get(index);
    if (value === undefined) throw this.#malformed(at, `refers to memo ${index}, which is not set`);
    if (value === TAKEN) {
      throw this.#malformed(at, `refers to memo ${index}, a trace entry, for a second time`);
    }
    return value;
  }

  #memoize(index: number, at: number): void {
    const value = this.#top(at);
    if (index >= this.#limits.memo) throw this.#limit(`memo ${index}`);
    if (
      value instanceof PickleList ||
      value instanceof PickleDict ||
      value instanceof PickleTuple
    ) {
      value.slot = index;
    }
    this.#keep(this.#memo.set(index, value));
  }

  #append(list: PickleList, from: number, at: number): void {
    const stack = this.#stack;
    if (from > stack.length) throw this.#malformed(at, 'appends more than there is');
    const before = list.items.length;
    for (let i = from; i < stack.length; i++) {
      const value = this.#completed(stack[i], list);
      if (value !== TAKEN) list.items.push(value);
    }
    this.#keep((list.items.length - before) * SLOT_BYTES);
    stack.length = from;
  }

  #setItems(dict: PickleDict, from: number, at: number): void {
    const stack = this.#stack;
    if ((stack.length - from) % 2 !== 0)
      throw this.#malformed(at, 'a dict with a key but no value');
    for (let i = from; i < stack.length; i += 2) {
      dict.keys.push(stack[i]);
      dict.values.push(this.#completed(stack[i + 1], dict));
    }
    this.#keep((stack.length - from) * SLOT_BYTES);
    stack.length = from;
  }

  #addItems(set: PickleDict, from: number, at: number): void {
    const stack = this.#stack;
    if (from > stack.length) throw this.#malformed(at, 'adds more than there is');
    for (let i = from; i < stack.length; i++) {
      set.keys.push(this.#completed(stack[i], set));
      set.values.push(null);
    }
    this.#keep((stack.length - from) * 2 * SLOT_BYTES);
    stack.length = from;
  }

  #pushTuple(from: number, at: number): void {
    const stack = this.#stack;
    if (from < 0) throw this.#malformed(at, 'a tuple of more than there is');
    const items = stack.slice(from);
    const tuple = new PickleTuple(items);
    for (let i = 0; i < items.length; i++) items[i] = this.#completed(items[i], tuple);
    stack.length = from;
    this.#keep(LIST_BYTES + items.length * SLOT_BYTES);
    stack.push(tuple);
  }

  /** Shows a container to the sink and makes the memo forget what the sink replaced. */
  #completed(value: PickleValue, parent: PickleList | PickleDict | PickleTuple): PickleValue {
    let weight: number;
    if (value instanceof PickleDict) weight = DICT_BYTES + value.keys.length * 2 * SLOT_BYTES;
    else if (value instanceof PickleList) weight = LIST_BYTES + value.items.length * SLOT_BYTES;
    else if (value instanceof PickleTuple) weight = LIST_BYTES + value.items.length * SLOT_BYTES;
    else return value;
    const replacement = this.#sink.complete(value, parent);
    if (replacement !== value) {
      this.#kept -= weight;
      if (value.slot >= 0) this.#memo.set(value.slot, replacement);
    }
    return replacement;
  }

  #pushText(text: string): void {
    this.#keep(STRING_BYTES + text.length * 2);
    this.#stack.push(text);
  }

  /** Python 2 strings (`isBytes` false) are read as latin-1 text. */
  #pushBytes(isBytes: boolean, buffer: Buffer, from: number, length: number): void {
    if (!isBytes) {
      this.#pushText(buffer.toString('latin1', from, from + length));
      return;
    }
    this.#keep(STRING_BYTES * 4 + length);
    this.#stack.push(Uint8Array.prototype.slice.call(buffer, from, from + length));
  }

  #integer(line: string, at: number): number {
    if (!/^\d{1,10}$/.test(line)) throw this.#malformed(at, 'a memo index that is no number');
    return Number(line);
  }

  #number(line: string, at: number): number | bigint {
    if (!/^-?\d+$/.test(line)) throw this.#malformed(at, 'an integer that is no number');
    if (line.length > LONG_LIMIT) throw this.#limit(`an integer of ${line.length} digits`);
    const value = Number(line);
    return Number.isSafeInteger(value) ? value : BigInt(line);
  }

  #float(line: string, at: number): number {
    const value = Number(line);
    if (Number.isNaN(value) && line !== 'nan') throw this.#malformed(at, 'a float that is none');
    return value;
  }

  #keep(bytes: number): void {
    this.#kept += bytes;
    if (this.#kept > this.#limits.kept) {
      throw this.#limit(`more than ${formatBytes(this.#limits.kept)} of values to keep`);
    }
  }

  #malformed(at: number, detail: string): UserError {
    return new UserError(
      'PICKLE_MALFORMED',
      `not a readable pickle: ${detail} (byte ${this.#offset + at})`,
    );
  }

  #limit(detail: string): UserError {
    return new UserError(
      'PICKLE_LIMIT',
      `the pickle holds ${detail}; no memory snapshot does. Nothing of it was kept.`,
    );
  }
}

/** First opcodes that protocols 0 and 1, which have no PROTO, can begin a list or dict with. */
const LOOKS_LIKE_PROTOCOL_0: ReadonlySet<number> = new Set([
  Op.MARK,
  Op.EMPTY_DICT,
  Op.EMPTY_LIST,
  Op.EMPTY_TUPLE,
  ...Object.keys(REFUSED).map(Number),
]);

/** `module.name` that a refused opcode asks for; undefined when its text is not whole yet; '' when it has none. */
function importedName(
  op: number,
  buffer: Buffer,
  position: number,
  stack: readonly PickleValue[],
): string | undefined {
  switch (REFUSED[op]) {
    case 'GLOBAL':
    case 'INST': {
      const first = buffer.indexOf(0x0a, position);
      const second = first < 0 ? -1 : buffer.indexOf(0x0a, first + 1);
      if (second < 0) return undefined;
      const module = buffer.toString('utf8', position, first);
      return printable(`${module}.${buffer.toString('utf8', first + 1, second)}`);
    }
    case 'STACK_GLOBAL': {
      const [module, name] = stack.slice(-2);
      return printable(`${String(module)}.${String(name)}`);
    }
    case 'PERSID': {
      const newline = buffer.indexOf(0x0a, position);
      if (newline < 0) return undefined;
      return printable(`persistent id ${buffer.toString('utf8', position, newline)}`);
    }
    default:
      return '';
  }
}

/** Keeps a hostile name from writing escape sequences to the terminal. */
function printable(name: string): string {
  return name.replace(/[^\x20-\x7e]/g, '?').slice(0, 200);
}

function littleEndian(buffer: Buffer, from: number, length: number): number | bigint {
  if (length === 0) return 0;
  if (length <= 6) return buffer.readIntLE(from, length);
  if (length === 7) {
    // Times in microseconds have seven bytes, in every entry: no detour through bigint for what fits 2^53.
    const high = buffer.readInt8(from + 6);
    if (high >= -32 && high < 32) return high * 2 ** 48 + buffer.readUIntLE(from, 6);
  }
  let value = 0n;
  for (let i = length - 1; i >= 0; i--) value = (value << 8n) | BigInt(buffer[from + i]);
  if ((buffer[from + length - 1] & 0x80) !== 0) value -= 1n << BigInt(length * 8);
  return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER
    ? Number(value)
    : value;
}

/** The memo: dense from 0 in every real pickle, so a list of blocks; a far index costs one block, not the gap. */
class Memo {
  static readonly #BLOCK = 1 << 16;
  readonly #blocks = new Map<number, (PickleValue | undefined)[]>();
  #last: (PickleValue | undefined)[] = [];
  #lastIndex = -1;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get(index: number): PickleValue | undefined {
    const block = index >>> 16;
    if (block !== this.#lastIndex) {
      const found = this.#blocks.get(block);
      if (found === undefined) return undefined;
      this.#last = found;
      this.#lastIndex = block;
    }
    return this.#last[index & (Memo.#BLOCK - 1)];
  }

  /** Returns the bytes that the slot costs: nothing when it was set before. */
  set(index: number, value: PickleValue): number {
    const number = index >>> 16;
    let block = this.#blocks.get(number);
    let cost = 0;
    if (block === undefined) {
      block = [];
      this.#blocks.set(number, block);
      cost = STRING_BYTES;
    }
    const offset = index & (Memo.#BLOCK - 1);
    // A hole-free block stays a fast array; a jump inside a block makes V8 use a sparse one, which is fine.
    if (block[offset] === undefined) {
      this.#size++;
      cost += SLOT_BYTES;
    }
    block[offset] = value;
    return cost;
  }
}

/** Short texts that come again and again without a reference ('N/A' of every entry): decoded once. */
class ShortTexts {
  /** Longest text that is looked up, bytes. */
  static readonly LONGEST = 24;
  static readonly #SLOTS = 1 << 14;
  readonly #bytes: (Buffer | undefined)[] = new Array(ShortTexts.#SLOTS).fill(undefined);
  readonly #texts: string[] = new Array(ShortTexts.#SLOTS).fill('');

  find(buffer: Buffer, from: number, length: number): string | undefined {
    const slot = ShortTexts.#slot(buffer, from, length);
    const known = this.#bytes[slot];
    if (known === undefined || known.length !== length) return undefined;
    for (let i = 0; i < length; i++) if (known[i] !== buffer[from + i]) return undefined;
    return this.#texts[slot];
  }

  add(buffer: Buffer, from: number, length: number): string {
    const slot = ShortTexts.#slot(buffer, from, length);
    const text = buffer.toString('utf8', from, from + length);
    this.#bytes[slot] = Buffer.from(buffer.subarray(from, from + length));
    this.#texts[slot] = text;
    return text;
  }

  static #slot(buffer: Buffer, from: number, length: number): number {
    let hash = length;
    for (let i = 0; i < length; i++) hash = (Math.imul(hash, 31) + buffer[from + i]) | 0;
    return (hash ^ (hash >>> 14)) & (ShortTexts.#SLOTS - 1);
  }
}
