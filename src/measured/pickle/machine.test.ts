import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';
import { PickleMachine, type PickleSink } from './machine.ts';
import { toPlain } from './values.ts';

const KEEP: PickleSink = { complete: (value) => value };

function read(bytes: Uint8Array, chunk = bytes.length || 1, limits = {}): unknown {
  const machine = new PickleMachine(KEEP, limits);
  for (let i = 0; i < bytes.length; i += chunk) {
    machine.feed(Buffer.from(bytes.subarray(i, i + chunk)));
  }
  return toPlain(machine.finish());
}

/** Python's own pickler writes the input: what is expected does not come from this program. */
function pickled(expression: string, protocol: number): Buffer {
  return execFileSync('python3', [
    '-c',
    `import pickle, sys; sys.stdout.buffer.write(pickle.dumps(${expression}, protocol=${protocol}))`,
  ]);
}

const VALUE =
  '{"ints": [0, 1, 255, 256, 65535, 65536, -1, -70000, 2**31, 2**40, 2**52, 1750000000000000, -2**40, 2**70],' +
  ' "floats": [0.5, -1e300], "flags": [True, False, None], "text": "größer \\u2603", "long": "x" * 300,' +
  ' "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "nested": {"a": {"b": [[]]}}}';

const EXPECTED = {
  ints: [
    0,
    1,
    255,
    256,
    65535,
    65536,
    -1,
    -70000,
    2 ** 31,
    2 ** 40,
    2 ** 52,
    1750000000000000,
    -(2 ** 40),
    2n ** 70n,
  ],
  floats: [0.5, -1e300],
  flags: [true, false, null],
  text: 'größer \u2603',
  long: 'x'.repeat(300),
  tuples: [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4]],
  nested: { a: { b: [[]] } },
};

test.each([0, 1, 2, 3, 4, 5])(
  'plain values of protocol %i, in one piece and byte by byte',
  (protocol) => {
    const bytes = pickled(VALUE, protocol);
    expect(read(bytes)).toEqual(EXPECTED);
    expect(read(bytes, 1)).toEqual(EXPECTED);
    expect(read(bytes, 7)).toEqual(EXPECTED);
  },
);

test('shared and long lists come out whole', () => {
  const bytes = pickled('(lambda s: [s] * 3 + [list(range(3000))])({"k": 1})', 4);
  const value = read(bytes, 1000) as unknown[];
  expect(value.slice(0, 3)).toEqual([{ k: 1 }, { k: 1 }, { k: 1 }]);
  expect((value[3] as number[])[2999]).toBe(2999);
});

test.each([
  ['__import__("os").system', 'posix.system'],
  ['__import__("collections").OrderedDict(a=1)', 'collections.OrderedDict'],
  [
    'type("X", (), {"__reduce__": lambda self: (__import__("os").getenv, ("HOME",))})()',
    'os.getenv',
  ],
])('%s is refused by name in every protocol', (expression, name) => {
  for (const protocol of [0, 2, 4, 5]) {
    const bytes = pickled(expression, protocol);
    for (const chunk of [bytes.length, 1]) {
      let error: unknown;
      try {
        read(bytes, chunk);
      } catch (caught) {
        error = caught;
      }
      expect(error).toMatchObject({ code: 'PICKLE_REFUSED' });
      expect((error as Error).message).toContain(name);
    }
  }
});

test('a refused name cannot write to the terminal', () => {
  const bytes = Buffer.from('\x80\x02cos\x1b[2J\nsystem\n.', 'latin1');
  expect(() => read(bytes)).toThrow('os?[2J.system');
});

test('persistent ids, extensions and out-of-band buffers are refused', () => {
  expect(() => read(Buffer.from('\x80\x02Pid\n.', 'latin1'))).toThrow('PERSID');
  expect(() => read(Buffer.from('\x80\x02\x82\x01.', 'latin1'))).toThrow('EXT1');
  expect(() => read(Buffer.from('\x80\x05\x97.', 'latin1'))).toThrow('NEXT_BUFFER');
});

test('a cut-off pickle says where it ends', () => {
  const bytes = pickled('{"a": [1, 2, 3]}', 4);
  for (let length = 1; length < bytes.length; length++) {
    expect(() => read(bytes.subarray(0, length))).toThrow(/cut off after|is empty/);
  }
});

test('what is no pickle at all is told at its first byte', () => {
  expect(() => read(Buffer.alloc(100))).toThrow('starts with byte 0x00 (byte 0)');
});

test.each([
  ['a text of 4 GiB', '\x80\x04X\xff\xff\xff\xff', /a text of/],
  ['an integer of 2 GiB', '\x80\x02\x8b\xff\xff\xff\x7f', /an integer of/],
  ['a memo slot far away', '\x80\x02]r\xff\xff\xff\xff', /memo 4294967295/],
  ['bytes of 2^63', '\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f', /a text of/],
  ['a mark that is not there', '\x80\x02]e.', /has no mark/],
  ['a reference to nothing', '\x80\x02h\x05.', /memo 5, which is not set/],
  ['an append to a number', '\x80\x02K\x01K\x02a.', /not a list/],
  ['a key without a value', '\x80\x02}(K\x01u.', /no value/],
  ['an unknown opcode', '\x80\x02\xff.', /no opcode/],
  ['a later protocol', '\x80\x09N.', /protocol 9/],
])('%s is an error of one line', (_, text, message) => {
  expect(() => read(Buffer.from(text, 'latin1'))).toThrow(message);
});

test('a million marks, values or lists stop at the limit', () => {
  const limits = { stack: 10_000, kept: 1_000_000 };
  expect(() => read(Buffer.alloc(100_000, '('), 100_000, limits)).toThrow(/marks nested too deep/);
  const numbers = Buffer.concat([Buffer.from([0x80, 4]), Buffer.alloc(100_000, 'N')]);
  expect(() => read(numbers, 4096, limits)).toThrow(/values on the stack/);
  const lists = Buffer.concat([Buffer.from([0x80, 4]), Buffer.alloc(200_000, ']0')]);
  expect(() => read(lists, 4096, limits)).toThrow(/values to keep/);
});

test('a dict that holds itself is read, and refused when made plain', () => {
  const bytes = pickled('(lambda d: d.update(me=d) or d)({})', 4);
  expect(() => read(bytes)).toThrow('nested deeper');
});
