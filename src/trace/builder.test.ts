import { expect, test } from 'vitest';
import {
  alloc,
  begin,
  builtFrom,
  close,
  cuda,
  end,
  free,
  resize,
  traceOf,
} from '../../tests/traces/event_list.ts';
import { EVENTS, type SidecarEvent } from '../protocol/events.ts';
import { framesOf, labelOf } from './trace.ts';

const codes = (names: readonly (keyof typeof EVENTS)[]) => names.map((name) => EVENTS[name].code);

test('an empty run is a whole trace', () => {
  const trace = traceOf([]);
  expect(trace.integrity).toEqual({ complete: true, faults: [], status: 'done' });
  expect(trace.events.length).toBe(0);
});

test('a run that failed is not whole, though nothing is missing', () => {
  const trace = builtFrom([cuda(), close(1, 'failed')]);
  expect(trace.integrity).toEqual({ complete: false, faults: [], status: 'failed' });
});

test('a close event that counts more than arrived is a fault', () => {
  const { faults } = builtFrom([cuda(), close(41)]).integrity;
  expect(faults).toEqual(['the run sent 42 events, 2 arrived']);
});

test('phases nest, repeat and carry the labels of those around them', () => {
  const trace = traceOf([
    begin(1, 'step', { step: 1 }),
    begin(2, 'forward', { micro_batch: 0 }),
    end(2),
    begin(3, 'forward', { micro_batch: 0 }),
    end(3),
    end(1),
  ]);
  const [, step, first, second] = trace.phases;
  expect(step).toMatchObject({ path: 'step[step=1]', depth: 0, parent: 0 });
  expect(first).toMatchObject({
    path: 'step[step=1]/forward[micro_batch=0]',
    depth: 1,
    parent: 1,
    occurrence: 0,
  });
  expect(second?.occurrence).toBe(1);
  expect(labelOf(trace, 3, 'step')).toBe(1);
  expect(labelOf(trace, 3, 'micro_batch')).toBe(0);
  expect(labelOf(trace, 3, 'stage')).toBeUndefined();
});

test('a phase that an exception left open ends with the one around it', () => {
  const trace = traceOf([begin(1, 'step'), begin(2, 'forward'), end(1, 9)]);
  expect(trace.integrity.complete).toBe(true);
  expect(trace.phases[2]).toMatchObject({ endEvent: 2, endTime: 9, closed: true });
  expect(trace.phases[1]).toMatchObject({ endEvent: 3, endTime: 9, closed: true });
  expect([...trace.events.code]).toEqual(
    codes(['phase_begin', 'phase_begin', 'phase_end', 'phase_end']),
  );
});

test('a phase that never ends lasts to the last event', () => {
  const trace = builtFrom([cuda(), begin(1, 'step'), alloc(1, 8), alloc(2, 8)]);
  expect(trace.phases[1]).toMatchObject({ endEvent: 2, closed: false });
});

test.each<[string, SidecarEvent[], string]>([
  ['a second birth', [alloc(1, 8), alloc(1, 8)], 'storage 1 is allocated twice'],
  ['a birth after death', [alloc(1, 8), free(1), alloc(1, 8)], 'storage 1 is allocated twice'],
  ['a second death', [alloc(1, 8), free(1), free(1)], 'free of storage 1, which is not live'],
  ['a resize of nothing', [resize(7, 8)], 'resize of storage 7, which is not live'],
  ['the end of no phase', [end(3)], 'phase 3 ends but is not open'],
])('%s is a fault and leaves no row', (_what, events, sentence) => {
  const trace = traceOf([cuda(), ...events]);
  expect(trace.integrity.faults).toEqual([sentence]);
  expect(trace.events.length).toBe(events.length - 1);
});

test('of many faults the first are told and the rest are counted', () => {
  const { faults } = traceOf(Array.from({ length: 50 }, (_, i) => free(i + 1))).integrity;
  expect(faults).toHaveLength(21);
  expect(faults.at(-1)).toBe('and 30 more faults');
});

const frame = (id: number, parent: number, line: number): SidecarEvent => ({
  type: 'stack',
  id,
  parent,
  file: 1,
  function: 2,
  line,
});
const TEXTS: SidecarEvent[] = [
  { type: 'string', id: 1, text: 'train.py' },
  { type: 'string', id: 2, text: 'main' },
];

test('frames of a stack come innermost first', () => {
  const trace = traceOf([cuda(), ...TEXTS, frame(1, 0, 10), frame(2, 1, 20)]);
  expect(framesOf(trace, 2).map(({ line }) => line)).toEqual([20, 10]);
});

test('tables that were lost read as empty', () => {
  // The batch with string 3 and stack 2 never arrived.
  const trace = builtFrom([
    cuda(),
    ...TEXTS,
    frame(1, 0, 10),
    alloc(1, 8, { op: 3, stack: 2, module: 5, tensor: 9 }),
    { type: 'owner', storage: 1, category: 1, name: 6 },
    close(9),
  ]);
  expect(trace.integrity.complete).toBe(false);
  expect(trace.strings[trace.events.op[0]]).toBe('');
  expect(trace.strings[6]).toBe('');
  expect(framesOf(trace, 2)).toEqual([{ file: '', function: '', line: 0 }]);
});

test('a stack after a gap keeps its place', () => {
  const trace = traceOf([cuda(), ...TEXTS, frame(1, 0, 10), frame(4, 1, 40), frame(2, 1, 20)]);
  expect(trace.integrity.faults).toEqual(['stack 4 out of order', 'stack 2 out of order']);
  expect(framesOf(trace, 4).map(({ line }) => line)).toEqual([40, 10]);
});
