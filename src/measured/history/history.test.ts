import { expect, test } from 'vitest';
import { MiB } from '../../base/bytes.ts';
import {
  type Block,
  type MemorySnapshot,
  type Segment,
  TraceEntries,
} from '../snapshot/snapshot.ts';
import { StackTable } from '../snapshot/stack_table.ts';
import { type HistoryOptions, readHistory } from './history.ts';
import { HistoryCursor } from './history_cursor.ts';

type Row = readonly [action: string, address: number, size: number];
const BASE = 0x7f0000000000;

function snapshot(
  rows: readonly Row[],
  segments: readonly Partial<Segment>[],
  settings: MemorySnapshot['allocatorSettings'] = {},
): MemorySnapshot {
  const entries = new TraceEntries();
  for (const [action, address, size] of rows) {
    entries.action.push(entries.actions.id(action));
    entries.address.push(BASE + address);
    entries.size.push(size);
    entries.stream.push(0);
    entries.time.push(0);
    entries.stack.push(0);
    entries.compileContext.push(0);
    entries.userMetadata.push(0);
    entries.pool.push(0);
  }
  entries.streams.push(0);
  return {
    entries,
    stacks: new StackTable(),
    segments: segments.map((segment) => ({
      device: 0,
      address: BASE,
      totalSize: 0,
      allocatedSize: 0,
      activeSize: 0,
      requestedSize: 0,
      stream: 0,
      kind: 'large',
      pool: '0,0',
      expandable: false,
      stack: 0,
      blocks: [],
      unknown: {},
      ...segment,
    })),
    deviceTraces: [{ device: 0, first: 0, count: rows.length }],
    allocatorSettings: settings,
    annotations: [],
    unknown: {},
  };
}

function block(address: number, size: number, requestedSize = size): Block {
  return { address: BASE + address, size, requestedSize, state: 'active_allocated', stack: 0 };
}

function history(
  rows: readonly Row[],
  segments: readonly Partial<Segment>[],
  options: HistoryOptions = {},
) {
  return readHistory(snapshot(rows, segments), 0, options);
}

test('a remainder of up to 1 MiB belongs to a block of the large pool, more is split off', () => {
  const { blockLow, blockHigh } = history(
    [
      ['segment_alloc', 0, 20 * MiB],
      ['alloc', 0, 5 * MiB],
      ['alloc', 5 * MiB, 14 * MiB],
      ['free_requested', 5 * MiB, 14 * MiB],
      ['free_completed', 5 * MiB, 14 * MiB],
      ['free_requested', 0, 5 * MiB],
      ['free_completed', 0, 5 * MiB],
    ],
    [{ totalSize: 20 * MiB }],
  );
  expect([blockLow[1], blockLow[2]]).toEqual([5 * MiB, 15 * MiB]);
  expect([blockHigh[1], blockHigh[2]]).toEqual([5 * MiB, 15 * MiB]);
});

test('a block from before the history is bounded until an allocation behind it shows its end', () => {
  const bounded = history(
    [
      ['free_requested', 0, 5 * MiB],
      ['free_completed', 0, 5 * MiB],
    ],
    [{ totalSize: 20 * MiB }],
  );
  expect(bounded.baselineBlocks).toMatchObject([
    { requested: 5 * MiB, low: 5 * MiB, high: 6 * MiB },
  ]);
  expect(bounded.boundedBlocks).toBe(1);
  const shown = history(
    [
      ['alloc', 5.5 * MiB, 2 * MiB],
      ['free_requested', 0, 5 * MiB],
      ['free_completed', 0, 5 * MiB],
      ['free_requested', 5.5 * MiB, 2 * MiB],
      ['free_completed', 5.5 * MiB, 2 * MiB],
    ],
    [{ totalSize: 20 * MiB }],
  );
  expect(shown.baselineBlocks).toMatchObject([{ low: 5.5 * MiB, high: 5.5 * MiB }]);
  expect(shown.boundedBlocks).toBe(0);
});

test('a size seen at the end is bound to the allocation that is live then, not to an earlier one at its address', () => {
  // 10 MiB in a segment of 11: the rest is not split off. Then the segment goes, and the same address gets one of 10 MiB.
  const { blockLow } = history(
    [
      ['segment_alloc', 0, 11 * MiB],
      ['alloc', 0, 10 * MiB],
      ['free_requested', 0, 10 * MiB],
      ['free_completed', 0, 10 * MiB],
      ['segment_free', 0, 11 * MiB],
      ['segment_alloc', 0, 10 * MiB],
      ['alloc', 0, 10 * MiB],
    ],
    [{ totalSize: 10 * MiB, blocks: [block(0, 10 * MiB)] }],
  );
  expect([blockLow[1], blockLow[6]]).toEqual([11 * MiB, 10 * MiB]);
});

test('what waits for a stream stays active until its free is completed', () => {
  const cursor = new HistoryCursor(
    history(
      [
        ['segment_alloc', 0, 2 * MiB],
        ['alloc', 0, 1000],
        ['free_requested', 0, 1000],
        ['alloc', 1024, 512],
        ['free_completed', 0, 1000],
      ],
      [{ totalSize: 2 * MiB, kind: 'small', blocks: [block(1024, 512)] }],
    ),
  );
  cursor.moveTo(4);
  expect(cursor).toMatchObject({ allocatedLow: 512, activeLow: 1536, requested: 1512 });
  cursor.moveTo(5);
  expect(cursor).toMatchObject({ allocatedLow: 512, activeLow: 512, requested: 512 });
});

test('an action that is not known is an error by its name', () => {
  const rows: Row[] = [['teleport', 0, 512]];
  expect(() => history(rows, [])).toThrow('the action "teleport"');
});

test('a ring buffer that was full is an error, known or by a round number', () => {
  const rows: Row[] = [];
  for (let i = 0; i < 500; i++) {
    rows.push(['free_requested', i * 1024, 1024], ['free_completed', i * 1024, 1024]);
  }
  const segments = [{ totalSize: 2 * MiB, kind: 'small' as const }];
  expect(() => history(rows, segments)).toThrow(/exactly 1000 entries/);
  expect(() => history(rows, segments, { maxEntries: 1000 })).toThrow(/its ring buffer/);
  expect(history(rows, segments, { maxEntries: 5000 }).count).toBe(1000);
});

test.each<[string, Row[], Partial<Segment>[], RegExp]>([
  [
    'memory allocated twice',
    [
      ['segment_alloc', 0, 2 * MiB],
      ['alloc', 0, 512],
      ['alloc', 0, 512],
    ],
    [{ totalSize: 2 * MiB, kind: 'small' }],
    /entry 2 .*allocated while it is in use/,
  ],
  [
    'a free of what is free',
    [
      ['free_requested', 0, 512],
      ['free_completed', 0, 512],
      ['free_requested', 0, 512],
    ],
    [{ totalSize: 2 * MiB, kind: 'small' }],
    /entry 2 .*was free already/,
  ],
  [
    'a free of another size',
    [
      ['segment_alloc', 0, 2 * MiB],
      ['alloc', 0, 512],
      ['free_requested', 0, 1024],
    ],
    [{ totalSize: 2 * MiB, kind: 'small' }],
    /freed with 1024 bytes, but was allocated with 512/,
  ],
  [
    'a free that is completed but was not requested',
    [
      ['segment_alloc', 0, 2 * MiB],
      ['alloc', 0, 512],
      ['free_completed', 0, 512],
    ],
    [{ totalSize: 2 * MiB, kind: 'small' }],
    /was never requested/,
  ],
  [
    'an allocation outside every segment',
    [['alloc', 64 * MiB, 512]],
    [{ totalSize: 2 * MiB, kind: 'small', blocks: [block(64 * MiB, 512)] }],
    /where no free block starts/,
  ],
  [
    'an allocation inside a live block',
    [
      ['segment_alloc', 0, 20 * MiB],
      ['alloc', 0, 5 * MiB],
      ['alloc', 2 * MiB, 2 * MiB],
    ],
    [{ totalSize: 20 * MiB, blocks: [block(0, 5 * MiB), block(2 * MiB, 2 * MiB)] }],
    /where no free block starts/,
  ],
  [
    'an allocation that does not fit',
    [
      ['segment_alloc', 0, 2 * MiB],
      ['alloc', 0, 3 * MiB],
    ],
    [{ totalSize: 2 * MiB, kind: 'small', blocks: [block(0, 3 * MiB)] }],
    /where only 2.00 MiB are free/,
  ],
  [
    'a segment that is not there at the end',
    [['segment_alloc', 0, 2 * MiB]],
    [],
    /neither freed later nor in the snapshot/,
  ],
  [
    'a segment freed while in use',
    [
      ['segment_alloc', 0, 2 * MiB],
      ['alloc', 0, 512],
      ['segment_free', 0, 2 * MiB],
    ],
    [],
    /live at the end of the history, but not in the snapshot|not one free block/,
  ],
  [
    'a live block that the history freed',
    [
      ['segment_alloc', 0, 2 * MiB],
      ['alloc', 0, 512],
      ['free_requested', 0, 512],
      ['free_completed', 0, 512],
    ],
    [{ totalSize: 2 * MiB, kind: 'small', blocks: [block(0, 512)] }],
    /which the history freed/,
  ],
  [
    'a block of another size than the split rule gives',
    [
      ['segment_alloc', 0, 2 * MiB],
      ['alloc', 0, 512],
    ],
    [{ totalSize: 2 * MiB, kind: 'small', blocks: [block(0, 1024, 512)] }],
    /split rule gives 512/,
  ],
])('%s is a contradiction that names its entry', (_, rows, segments, message) => {
  expect(() => history(rows, segments)).toThrow(message);
  expect(() => history(rows, segments)).toThrow(/contradicts itself/);
});
