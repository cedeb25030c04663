import { existsSync, statSync } from 'node:fs';
import { dirname } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { Dealer } from 'zeromq';
import { encodeBatch } from '../protocol/codec.ts';
import { EVENTS, type EventTuple } from '../protocol/events.ts';
import { EventStream, type StreamOptions } from './stream.ts';

const FREE = (storage: number): EventTuple => [EVENTS.free.code, storage];
const CLOSE = (events: number): EventTuple => [EVENTS.close.code, 'done', events, {}];

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0)) await cleanup();
});

async function openPair(options: StreamOptions = {}) {
  const stream = await EventStream.open(options);
  const push = new Dealer({ linger: 0 });
  if (stream.curve !== null) {
    push.curveServerKey = stream.curve.server_public;
    push.curvePublicKey = stream.curve.public;
    push.curveSecretKey = stream.curve.secret;
  }
  push.connect(stream.endpoint);
  cleanups.push(() => push.close());
  cleanups.push(() => stream.close());
  const send = (sequence: number, events: EventTuple[], run = stream.run) =>
    push.send(encodeBatch({ run, sequence, events }));
  return { stream, push, send };
}

async function receiveAll(stream: EventStream) {
  const sequences: number[] = [];
  const summary = await stream.receive({
    frame: async (_raw, batch) => {
      sequences.push(batch.sequence);
    },
  });
  return { sequences, summary };
}

test('a whole stream has no faults and ends at the close event', async () => {
  const { stream, send } = await openPair();
  await send(0, [FREE(1), FREE(2)]);
  await send(1, [CLOSE(3)]);
  const { sequences, summary } = await receiveAll(stream);
  expect(sequences).toEqual([0, 1]);
  expect(summary).toEqual({ batches: 2, events: 3, closed: true, status: 'done', faults: [] });
});

test('the worker is told that its stream was read, once the sink has the close event', async () => {
  const { stream, push, send } = await openPair();
  await send(0, [FREE(1)]);
  await send(1, [CLOSE(2)]);
  const order: string[] = [];
  const [, answer] = await Promise.all([
    stream.receive({
      frame: async (_raw, batch) => {
        await new Promise((done) => setTimeout(done, 20));
        order.push(`batch ${batch.sequence}`);
      },
    }),
    push.receive().then((frames) => {
      order.push('answer');
      return frames;
    }),
  ]);
  expect(order).toEqual(['batch 0', 'batch 1', 'answer']);
  expect(answer.map((frame) => frame.length)).toEqual([0]);
});

test('the socket lies in a folder that only its owner can enter, and both are gone after close', async () => {
  const { stream } = await openPair();
  const socket = stream.endpoint.replace('ipc://', '');
  const folder = dirname(socket);
  expect(statSync(folder).mode & 0o777).toBe(0o700);
  await stream.close();
  expect(existsSync(folder)).toBe(false);
});

test('loopback TCP carries the stream under CURVE and refuses a peer without keys', async () => {
  const { stream, send } = await openPair({ transport: 'tcp' });
  expect(stream.endpoint).toMatch(/^tcp:\/\/127\.0\.0\.1:\d+$/);
  const stranger = new Dealer({ linger: 0, sendTimeout: 200 });
  cleanups.push(() => stranger.close());
  stranger.connect(stream.endpoint);
  await stranger
    .send(encodeBatch({ run: stream.run, sequence: 0, events: [FREE(9)] }))
    .catch(() => undefined);
  await send(0, [CLOSE(1)]);
  const { summary } = await receiveAll(stream);
  expect(summary.events).toBe(1);
  expect(summary.faults).toEqual([]);
});

test('a gap in the sequence is named and what comes after it is kept', async () => {
  const { stream, send } = await openPair();
  await send(0, [FREE(1)]);
  await send(3, [FREE(2), CLOSE(5)]);
  const { sequences, summary } = await receiveAll(stream);
  expect(sequences).toEqual([0, 3]);
  expect(summary.faults).toEqual([
    'batches 1 to 2 of the stream never arrived',
    'the worker sent 5 events, 3 arrived',
  ]);
});

test('a repeated batch is left out', async () => {
  const { stream, send } = await openPair();
  await send(0, [FREE(1)]);
  await send(0, [FREE(1)]);
  await send(1, [CLOSE(2)]);
  const { sequences, summary } = await receiveAll(stream);
  expect(sequences).toEqual([0, 1]);
  expect(summary.faults).toEqual(['batch 0 came twice or out of order and was left out']);
});

test('a frame of another run, a newer protocol and plain noise are refused by name', async () => {
  const { stream, send, push } = await openPair();
  await send(0, [FREE(1)], 'another run');
  await push.send(Buffer.from('noise'));
  // msgpack of [99, run, 0, []]
  const newer = Buffer.from(encodeBatch({ run: stream.run, sequence: 0, events: [] }));
  newer[1] = 99;
  await push.send(newer);
  await send(0, [CLOSE(1)]);
  const { summary } = await receiveAll(stream);
  expect(summary.events).toBe(1);
  expect(summary.faults).toEqual([
    'a frame of another run was refused',
    expect.stringContaining('a frame of the stream was refused: not '),
    'a frame of the stream was refused: protocol version 99 is newer than 1; update memtracker',
  ]);
});

test('a sender that is gone without a close event ends the stream with everything it had sent', async () => {
  const { stream, send } = await openPair();
  for (let sequence = 0; sequence < 50; sequence++) await send(sequence, [FREE(sequence)]);
  stream.senderGone();
  const { summary } = await receiveAll(stream);
  expect(summary.batches).toBe(50);
  expect(summary.closed).toBe(false);
  expect(summary.faults).toEqual([
    'the worker ended without closing its stream; what arrived is kept',
  ]);
});

test('a slow reader makes the sender wait and loses nothing', async () => {
  const { stream, push } = await openPair();
  push.sendHighWaterMark = 1;
  const total = 2000;
  const events = Array.from({ length: 400 }, (_, i) => FREE(i));
  let sent = 0;
  const sending = (async () => {
    for (let sequence = 0; sequence < total; sequence++) {
      const last = sequence === total - 1;
      const batch = last ? [CLOSE((total - 1) * events.length + 1)] : events;
      await push.send(encodeBatch({ run: stream.run, sequence, events: batch }));
      sent++;
    }
  })();
  let received = 0;
  let furthestAhead = 0;
  const summary = await stream.receive({
    frame: async () => {
      received++;
      furthestAhead = Math.max(furthestAhead, sent - received);
      if (received < 20) await new Promise((done) => setTimeout(done, 20));
    },
  });
  await sending;
  expect(summary).toMatchObject({ batches: total, faults: [] });
  expect(furthestAhead).toBeLessThan(total / 2);
});

test('a path too long for a socket falls back to one that is not', async () => {
  const stream = await EventStream.open({
    env: { XDG_RUNTIME_DIR: `/tmp/${'x'.repeat(120)}` },
  });
  cleanups.push(() => stream.close());
  expect(stream.endpoint).toMatch(/^ipc:/);
});
