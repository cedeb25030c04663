// What the page knows of a run against what the analysis knows, for random histories: births, deaths, resizes, owners that change.

import { inflateRawSync } from 'node:zlib';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { SMALL_JOB, syntheticHeader } from '../../../../tests/traces/synthetic.ts';
import { type Analysis, analyzeTrace } from '../../../attribution/analysis.ts';
import { toTuple } from '../../../protocol/codec.ts';
import { OWNERS, type SidecarEvent } from '../../../protocol/events.ts';
import { liveAt } from '../../../timeline/live_set.ts';
import { TraceBuilder } from '../../../trace/builder.ts';
import type { Payload } from '../payload.ts';
import { packPayload } from '../payload_writer.ts';
import { readVarints, unzigzag, VarintWriter } from '../varint.ts';
import { decodeColumns } from './decode.ts';
import { DeviceModel } from './device_model.ts';

const KiB = 1024;

/** A history in small steps: [what, which storage, KiB or owner]. */
const step = fc.tuple(
  fc.constantFrom('alloc', 'free', 'resize', 'owner', 'phase'),
  fc.nat(11),
  fc.nat(3000),
);

function analysisOf(steps: readonly (readonly [string, number, number])[]): Analysis {
  const builder = new TraceBuilder(syntheticHeader(SMALL_JOB));
  const push = (event: SidecarEvent) => builder.push(toTuple(event));
  push({ type: 'device', id: 0, kind: 'cuda', index: 0, name: 'GPU', properties: {} });
  for (let id = 1; id <= OWNERS.length; id++) push({ type: 'string', id, text: `name ${id}` });
  const live: number[] = [];
  let storages = 0;
  let phases = 0;
  const at = { stream: 0, pool: 0, op: 1, stack: 0, module: 0, pass: 1 };
  for (const [what, which, value] of [['alloc', 0, 1] as const, ...steps]) {
    const storage = live[which % Math.max(1, live.length)];
    if (what === 'alloc') {
      live.push(++storages);
      push({
        type: 'alloc',
        storage: storages,
        bytes: value * KiB + 1,
        device: 0,
        tensor: 0,
        ...at,
      });
    } else if (what === 'phase') {
      phases++;
      push({ type: 'phase_begin', phase: phases, name: 'p', labels: {}, time: phases });
      push({ type: 'phase_end', phase: phases, time: phases });
    } else if (storage !== undefined) {
      if (what === 'free') {
        live.splice(live.indexOf(storage), 1);
        push({ type: 'free', storage });
      } else if (what === 'resize') {
        push({ type: 'resize', storage, bytes: value < 600 ? 0 : value * KiB, ...at });
      } else {
        const category = 1 + (value % (OWNERS.length - 1));
        push({ type: 'owner', storage, category, name: category });
      }
    }
  }
  return analyzeTrace(builder.finish(null));
}

function modelOf(analysis: Analysis): DeviceModel {
  const { json, columns } = packPayload(analysis, []);
  const inflated = (text: string) => inflateRawSync(Buffer.from(text, 'base64'));
  const payload = JSON.parse(inflated(json).toString()) as Payload;
  const [device] = payload.devices;
  return new DeviceModel(device, decodeColumns(device, inflated(columns)), payload);
}

test('at every event the page has the blocks, owners and series of the analysis', () => {
  fc.assert(
    fc.property(fc.array(step, { minLength: 5, maxLength: 120 }), (steps) => {
      const analysis = analysisOf(steps);
      const { timeline } = analysis.devices[0];
      const model = modelOf(analysis);
      expect(model.events).toBe(timeline.length);
      const all = Uint32Array.from({ length: timeline.length }, (_, event) => event);
      const sums = model.ownerSums(all);
      for (let event = 0; event < timeline.length; event++) {
        const expected = liveAt(timeline, event).map((block) => [
          block.storage,
          block.block,
          block.requested,
          block.owner,
        ]);
        const shown = model
          .liveAt(event)
          .map(({ row, owner }) => [
            model.columns.storage[row],
            model.size[row],
            model.requested[row],
            owner,
          ]);
        const sorted = (rows: number[][]) => rows.map((row) => row.join()).sort();
        expect(sorted(shown)).toEqual(sorted(expected));
        for (const kind of ['allocated', 'active', 'reserved', 'external'] as const) {
          expect(model[kind][event]).toBe(timeline.series[kind][event]);
        }
        const byOwner = new Float64Array(OWNERS.length);
        for (const [, block, , owner] of expected) byOwner[owner] += block;
        const start = event * OWNERS.length;
        expect([...sums.subarray(start, start + OWNERS.length)]).toEqual([...byOwner]);
        expect(model.phase[event] === 0).toBe(timeline.trace.events.phase[event] === 0);
      }
    }),
    { numRuns: 60 },
  );
});

test('a sample of a window has its exact extremes, however many events it stands for', () => {
  const steps = Array.from({ length: 4000 }, (_, i): [string, number, number] => [
    i % 3 === 2 ? 'free' : 'alloc',
    i % 12,
    (i * 7919) % 3000,
  ]);
  const model = modelOf(analysisOf(steps));
  for (const [from, to] of [
    [0, model.events - 1],
    [100, 3500],
    [63, 65],
    [64, 191],
  ]) {
    const chosen = model.sample(from, to, 5);
    for (const series of [model.allocated, model.resident]) {
      const window = series.subarray(from, to + 1);
      const values = Array.from(chosen, (event) => series[event]);
      expect(Math.max(...values)).toBe(Math.max(...window));
      expect(Math.min(...values)).toBe(Math.min(...window));
    }
  }
});

test('numbers up to 2^53 survive the columns', () => {
  fc.assert(
    fc.property(fc.array(fc.maxSafeNat()), (values) => {
      const writer = new VarintWriter();
      for (const value of values) writer.push(value);
      expect([...readVarints(writer.bytes(), values.length)]).toEqual(values);
    }),
  );
  for (const value of [0, 1, -1, 2 ** 40, -(2 ** 40)]) {
    const writer = new VarintWriter();
    writer.pushSigned(value);
    expect(unzigzag(readVarints(writer.bytes(), 1)[0])).toBe(value);
  }
});
