import fc from 'fast-check';
import { pack } from 'msgpackr';
import { expect, test } from 'vitest';
import { decodeBatch, encodeBatch, eventFault, toObject, toTuple } from './codec.ts';
import {
  EVENTS,
  type EventName,
  type EventTuple,
  eventNameOf,
  type FieldKind,
  PROTOCOL_VERSION,
} from './events.ts';

const VALUES: Readonly<Record<FieldKind, fc.Arbitrary<unknown>>> = {
  uint: fc.maxSafeNat(),
  int: fc.maxSafeInteger(),
  real: fc.double({ noNaN: true, noDefaultInfinity: true }).map((value) => value + 0),
  text: fc.string({ unit: 'grapheme' }),
  flag: fc.boolean(),
  uints: fc.array(fc.maxSafeNat(), { maxLength: 5 }),
  fields: fc.dictionary(
    fc.string({ minLength: 1 }).filter((key) => key !== '__proto__'),
    fc.oneof(fc.string(), fc.integer(), fc.boolean(), fc.constant(null), fc.array(fc.string())),
    { maxKeys: 4, noNullPrototype: true },
  ),
};

const events = fc
  .constantFrom(...(Object.keys(EVENTS) as EventName[]))
  .chain((name) =>
    fc
      .tuple(...Object.values(EVENTS[name].fields).map((kind: FieldKind) => VALUES[kind]))
      .map((fields): EventTuple => [EVENTS[name].code, ...fields]),
  );

test('every event of the table survives the wire, as a tuple and as an object', () => {
  fc.assert(
    fc.property(fc.array(events, { maxLength: 20 }), fc.nat(), (list, sequence) => {
      const decoded = decodeBatch(encodeBatch({ run: 'a run', sequence, events: list }));
      expect(decoded).toEqual({
        ok: true,
        value: { version: PROTOCOL_VERSION, run: 'a run', sequence, events: list },
      });
      for (const tuple of list) expect(toTuple(toObject(tuple))).toEqual(tuple);
    }),
  );
});

test('codes are unique, so that a tuple names one event', () => {
  const names = Object.keys(EVENTS) as EventName[];
  expect(names.map((name) => eventNameOf(EVENTS[name].code))).toEqual(names);
});

test('whatever arrives is decoded or refused in a sentence, and never thrown', () => {
  fc.assert(
    fc.property(fc.oneof(fc.uint8Array({ maxLength: 200 }), fc.anything().map(packed)), (frame) => {
      const decoded = decodeBatch(frame);
      if (!decoded.ok) expect(decoded.error).toMatch(/\w/);
    }),
  );
});

function packed(value: unknown): Uint8Array {
  try {
    return pack([PROTOCOL_VERSION, 'run', 0, [value]]);
  } catch {
    return new Uint8Array();
  }
}

test.each([
  ['no array', { code: 11 }, 'an event is not an array'],
  ['an unknown code', [999, 1], 'unknown event code 999'],
  ['a code that is a word', ['length', 1], 'unknown event code length'],
  ['no code', [], 'unknown event code undefined'],
  ['a field too few', [EVENTS.free.code], 'free has 0 fields instead of 1'],
  ['a field too many', [EVENTS.free.code, 1, 2], 'free has 2 fields instead of 1'],
  ['a negative id', [EVENTS.free.code, -1], 'free.storage is -1'],
  ['half a byte', [EVENTS.free.code, 0.5], 'free.storage is 0.5'],
  ['a text for a number', [EVENTS.free.code, '7'], 'free.storage is "7"'],
  [
    'a map inside labels',
    [EVENTS.phase_begin.code, 1, 'step', { step: { of: 2 } }, 0],
    'phase_begin.labels is {"step":{"of":2}}',
  ],
])('an event with %s is named by what is wrong', (_what, event, fault) => {
  expect(eventFault(event)).toBe(fault);
});

test('the faulty event of a batch is named by its place', () => {
  const bad = [EVENTS.free.code, 'x'] as unknown as EventTuple;
  const frame = encodeBatch({ run: 'r', sequence: 4, events: [[EVENTS.free.code, 1], bad] });
  expect(decodeBatch(frame)).toEqual({
    ok: false,
    error: 'event 1 of batch 4: free.storage is "x"',
  });
});

test('a batch of a newer protocol is refused with what to do, one of this version is not', () => {
  const newer = pack([PROTOCOL_VERSION + 1, 'run', 0, []]);
  expect(decodeBatch(newer)).toEqual({
    ok: false,
    error: `protocol version ${PROTOCOL_VERSION + 1} is newer than ${PROTOCOL_VERSION}; update memtracker`,
  });
  expect(decodeBatch(pack([PROTOCOL_VERSION, 'run', 0, []])).ok).toBe(true);
});
