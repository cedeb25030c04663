// Turns the containers of a snapshot pickle into records while they are read (see PickleSink): frames and stacks are interned,
// trace entries become rows of columns, blocks and segments become plain records.

import { UserError } from '../../base/errors.ts';
import type { PickleSink } from '../pickle/machine.ts';
import {
  PickleDict,
  PickleList,
  PickleRecord,
  PickleTuple,
  type PickleValue,
  type Plain,
  TAKEN,
  toPlain,
} from '../pickle/values.ts';
import {
  type Block,
  type BlockState,
  type DeviceTrace,
  type ExternalAnnotation,
  type MemorySnapshot,
  type Segment,
  SparseColumn,
  TraceEntries,
} from './snapshot.ts';
import { StackTable } from './stack_table.ts';

class FrameRecord extends PickleRecord {
  readonly id: number;
  constructor(id: number) {
    super();
    this.id = id;
  }
  override plain(): Plain {
    return { frame: this.id };
  }
}

class StackRecord extends PickleRecord {
  readonly node: number;
  constructor(node: number) {
    super();
    this.node = node;
  }
  override plain(): Plain {
    return { stack: this.node };
  }
}

class BlockRecord extends PickleRecord implements Block {
  readonly address: number;
  readonly size: number;
  readonly requestedSize: number;
  readonly state: BlockState;
  readonly stack: number;
  constructor(address: number, size: number, requested: number, state: BlockState, stack: number) {
    super();
    this.address = address;
    this.size = size;
    this.requestedSize = requested;
    this.state = state;
    this.stack = stack;
  }
  override plain(): Plain {
    return { address: this.address, size: this.size, state: this.state };
  }
}

class SegmentRecord extends PickleRecord {
  readonly segment: Segment;
  constructor(segment: Segment) {
    super();
    this.segment = segment;
  }
  override plain(): Plain {
    return { address: this.segment.address, total_size: this.segment.totalSize };
  }
}

/** torch 2.1 to 2.14 write `active_pending_free`; the documentation's `active_awaiting_free` is read too. */
const BLOCK_STATES: Readonly<Record<string, BlockState>> = {
  active_allocated: 'active_allocated',
  active_pending_free: 'active_pending_free',
  active_awaiting_free: 'active_pending_free',
  inactive: 'inactive',
};

const SEGMENT_KEYS: ReadonlySet<string> = new Set([
  'device',
  'address',
  'total_size',
  'allocated_size',
  'active_size',
  'requested_size',
  'stream',
  'segment_type',
  'segment_pool_id',
  'is_expandable',
  'frames',
  'blocks',
]);

/** Nodes of distinct stacks that a snapshot may have; 64 million are 1 GiB. */
const MAX_STACK_NODES = 1 << 26;

export class SnapshotBuilder implements PickleSink {
  readonly entries = new TraceEntries();
  readonly stacks = new StackTable();
  readonly #frames: FrameRecord[] = [];
  readonly #stackRecords = new Map<number, StackRecord>();
  readonly #streamIds = new Map<number, number>();

  complete(
    value: PickleList | PickleDict | PickleTuple,
    parent: PickleList | PickleDict | PickleTuple,
  ): PickleValue {
    if (value instanceof PickleDict) {
      if (parent instanceof PickleList) return this.#listElement(value, parent);
      return value;
    }
    if (value instanceof PickleList && value.items[0] instanceof FrameRecord) {
      return this.#stack(value);
    }
    return value;
  }

  #listElement(dict: PickleDict, parent: PickleList): PickleValue {
    const { keys } = dict;
    // A dict belongs to one of four kinds of list. A trace entry is told from the rest by `action`.
    for (let i = 0; i < keys.length; i++) {
      switch (keys[i]) {
        case 'action':
          this.#entry(dict, parent);
          return TAKEN;
        case 'filename':
          return this.#frame(dict);
        case 'state':
          return this.#block(dict);
        case 'blocks':
          return this.#segment(dict);
      }
    }
    return dict;
  }

  #frame(dict: PickleDict): PickleValue {
    const filename = dict.get('filename');
    const name = dict.get('name');
    let line = dict.get('line');
    // A line that torch does not know can come as (size_t)-1 (seen in a 2.12 nightly, Python frames of compiled code).
    if (typeof line === 'bigint') line = 0;
    if (typeof filename !== 'string' || typeof name !== 'string' || typeof line !== 'number') {
      return dict;
    }
    const id = this.stacks.frameId(
      dict.keys.length === 3
        ? { filename, name, line }
        : { filename, name, line, unknown: jsonText(toPlain(dict)) },
    );
    this.#frames[id] ??= new FrameRecord(id);
    return this.#frames[id];
  }

  #stack(list: PickleList): PickleValue {
    const { items } = list;
    let node = 0;
    for (let i = items.length - 1; i >= 0; i--) {
      const frame = items[i];
      if (!(frame instanceof FrameRecord)) return list;
      node = this.stacks.node(node, frame.id);
    }
    if (this.stacks.nodes > MAX_STACK_NODES) {
      throw new UserError(
        'SNAPSHOT_LIMIT',
        `the snapshot has more than ${MAX_STACK_NODES} distinct stack nodes; record with stacks="python" or a smaller max_entries`,
      );
    }
    let record = this.#stackRecords.get(node);
    if (record === undefined) {
      record = new StackRecord(node);
      this.#stackRecords.set(node, record);
    }
    return record;
  }

  #entry(dict: PickleDict, parent: PickleList): void {
    const entries = this.entries;
    const row = entries.length;
    let action: PickleValue = null;
    let address = -1;
    let size = 0;
    let stream = 0;
    let time = 0;
    let stack = 0;
    let context = 0;
    let metadata = 0;
    let pool = 0;
    for (let i = 0; i < dict.keys.length; i++) {
      const key = dict.keys[i];
      const value = dict.values[i];
      switch (key) {
        case 'action':
          action = value;
          break;
        case 'addr':
        case 'device_free':
          address = wholeNumber(value, key, row);
          break;
        case 'size':
          size = wholeNumber(value, key, row);
          break;
        case 'stream':
          stream = wholeNumber(value, key, row);
          break;
        case 'time_us':
          time = wholeNumber(value, key, row);
          break;
        case 'frames':
          stack = this.#stackNode(value, `frames of trace entry ${row}`);
          break;
        case 'compile_context':
          context = this.#textId(value, key, row);
          break;
        case 'user_metadata':
          metadata = this.#textId(value, key, row);
          break;
        case 'pool_id':
        case 'segment_pool_id':
          pool = entries.pools.id(poolName(value));
          break;
        default:
          this.#unknownField(String(key), value, row);
      }
    }
    if (typeof action !== 'string' || address < 0) {
      throw new UserError(
        'SNAPSHOT_ENTRY',
        `trace entry ${row} has no ${typeof action !== 'string' ? 'action' : 'address'}`,
      );
    }
    const code = entries.actions.id(action);
    if (code > 255) throw new UserError('SNAPSHOT_ENTRY', 'more than 255 kinds of trace entry');
    entries.action.push(code);
    entries.address.push(address);
    entries.size.push(size);
    entries.stream.push(this.#streamId(stream));
    entries.time.push(time);
    entries.stack.push(stack);
    entries.compileContext.push(context);
    entries.userMetadata.push(metadata);
    entries.pool.push(pool);
    if (parent.run === undefined) parent.run = { first: row, count: 1 };
    else if (parent.run.first + parent.run.count === row) parent.run.count++;
    else
      throw new UserError('SNAPSHOT_ENTRY', `trace entry ${row} is not in one run with its list`);
  }

  #streamId(stream: number): number {
    let id = this.#streamIds.get(stream);
    if (id === undefined) {
      id = this.entries.streams.length;
      this.entries.streams.push(stream);
      this.#streamIds.set(stream, id);
    }
    return id;
  }

  #textId(value: PickleValue, key: string, row: number): number {
    if (value === null) return 0;
    if (typeof value !== 'string') {
      throw new UserError('SNAPSHOT_ENTRY', `${key} of trace entry ${row} is not text`);
    }
    return this.entries.texts.id(value);
  }

  #unknownField(key: string, value: PickleValue, row: number): void {
    let column = this.entries.unknown.get(key);
    if (column === undefined) {
      if (this.entries.unknown.size >= 64) {
        throw new UserError('SNAPSHOT_ENTRY', 'trace entries have more than 64 unknown fields');
      }
      column = new SparseColumn();
      this.entries.unknown.set(key, column);
    }
    column.rows.push(row);
    column.texts.push(this.entries.texts.id(jsonText(toPlain(value))));
  }

  #stackNode(value: PickleValue | undefined, where: string): number {
    if (value instanceof StackRecord) return value.node;
    if (value === undefined || value === null) return 0;
    if (value instanceof PickleList && value.items.length === 0) return 0;
    throw new UserError('SNAPSHOT_ENTRY', `the ${where} are not a list of frames`);
  }

  #block(dict: PickleDict): PickleValue {
    const size = dict.get('size');
    const state = dict.get('state');
    if (size === undefined || typeof state !== 'string') return dict;
    const known = BLOCK_STATES[state];
    if (known === undefined) {
      throw new UserError(
        'SNAPSHOT_BLOCK',
        `a block has the unknown state ${JSON.stringify(state)}`,
      );
    }
    const bytes = wholeNumber(size, 'size', -1);
    const requested = dict.get('requested_size');
    const address = dict.get('address');
    return new BlockRecord(
      address === undefined ? -1 : wholeNumber(address, 'address', -1),
      bytes,
      requested === undefined ? bytes : wholeNumber(requested, 'requested_size', -1),
      known,
      this.#stackNode(dict.get('frames'), 'frames of a block'),
    );
  }

  #segment(dict: PickleDict): PickleValue {
    const blocks = dict.get('blocks');
    if (!(blocks instanceof PickleList) || dict.get('total_size') === undefined) return dict;
    const number = (key: string, fallback: number): number => {
      const value = dict.get(key);
      return value === undefined ? fallback : wholeNumber(value, key, -1);
    };
    const address = number('address', 0);
    const placed: Block[] = [];
    let at = address;
    for (const block of blocks.items) {
      if (!(block instanceof BlockRecord)) {
        throw new UserError(
          'SNAPSHOT_BLOCK',
          `the segment at ${hex(address)} has a malformed block`,
        );
      }
      // Blocks of torch 2.0 have no address; they lie one after the other.
      const here = block.address >= 0 ? block.address : at;
      placed.push({
        address: here,
        size: block.size,
        requestedSize: block.requestedSize,
        state: block.state,
        stack: block.stack,
      });
      at = here + block.size;
    }
    const unknown = Object.create(null) as { [key: string]: Plain };
    for (let i = 0; i < dict.keys.length; i++) {
      const key = String(dict.keys[i]);
      if (!SEGMENT_KEYS.has(key)) unknown[key] = toPlain(dict.values[i]);
    }
    const pool = dict.get('segment_pool_id');
    return new SegmentRecord({
      device: number('device', 0),
      address,
      totalSize: number('total_size', 0),
      allocatedSize: number('allocated_size', 0),
      activeSize: number('active_size', 0),
      requestedSize: number('requested_size', 0),
      stream: number('stream', 0),
      kind: dict.get('segment_type') === 'small' ? 'small' : 'large',
      pool: pool === undefined ? '0,0' : poolName(pool),
      expandable: dict.get('is_expandable') === true,
      stack: this.#stackNode(dict.get('frames'), 'frames of a segment'),
      blocks: placed,
      unknown,
    });
  }

  /**
   * The snapshot, from the top value of the pickle.
   * @throws UserError `SNAPSHOT_FORMAT` when it is not one.
   */
  snapshot(top: PickleValue): MemorySnapshot {
    if (!(top instanceof PickleDict)) {
      throw new UserError(
        'SNAPSHOT_FORMAT',
        'the pickle is not a memory snapshot: its top value is not a dict; torch.cuda.memory._dump_snapshot writes one',
      );
    }
    const segments = top.get('segments');
    const traces = top.get('device_traces');
    if (!(segments instanceof PickleList) || !(traces instanceof PickleList)) {
      const keys = top.keys.slice(0, 8).map((key) => String(key).slice(0, 40));
      throw new UserError(
        'SNAPSHOT_FORMAT',
        `the pickle is not a memory snapshot: it has no "segments" and "device_traces" but ${keys.length === 0 ? 'nothing' : keys.join(', ')}`,
      );
    }
    const settings = top.get('allocator_settings');
    const annotations = top.get('external_annotations');
    const unknown = Object.create(null) as { [key: string]: Plain };
    for (let i = 0; i < top.keys.length; i++) {
      const key = String(top.keys[i]);
      if (!TOP_KEYS.has(key)) unknown[key] = summary(top.values[i]);
    }
    return {
      entries: this.entries,
      stacks: this.stacks,
      segments: segments.items.map((item) => {
        if (item instanceof SegmentRecord) return item.segment;
        throw new UserError('SNAPSHOT_FORMAT', '"segments" holds something that is not a segment');
      }),
      deviceTraces: traces.items.map((item, device) => this.#deviceTrace(item, device)),
      allocatorSettings:
        settings instanceof PickleDict ? (toPlain(settings) as { [key: string]: Plain }) : {},
      annotations:
        annotations instanceof PickleList
          ? annotations.items.flatMap((item) => annotation(item))
          : [],
      unknown,
    };
  }

  #deviceTrace(item: PickleValue, device: number): DeviceTrace {
    if (!(item instanceof PickleList) || item.items.length > 0) {
      throw new UserError(
        'SNAPSHOT_FORMAT',
        `device_traces[${device}] holds something that is not a trace entry`,
      );
    }
    return { device, first: item.run?.first ?? 0, count: item.run?.count ?? 0 };
  }
}

const TOP_KEYS: ReadonlySet<string> = new Set([
  'segments',
  'device_traces',
  'allocator_settings',
  'external_annotations',
]);

function annotation(item: PickleValue): ExternalAnnotation[] {
  if (!(item instanceof PickleDict)) return [];
  const name = item.get('name');
  const stage = item.get('stage');
  if (typeof name !== 'string' || typeof stage !== 'string') return [];
  return [
    {
      name,
      stage,
      device: Number(item.get('device') ?? 0),
      time: Number(item.get('time_us') ?? 0),
    },
  ];
}

function poolName(value: PickleValue): string {
  if (value instanceof PickleTuple || value instanceof PickleList) {
    return value.items.map(String).join(',');
  }
  return String(value);
}

function jsonText(value: Plain): string {
  return JSON.stringify(value, (_, item: unknown) =>
    typeof item === 'bigint' ? item.toString() : item,
  );
}

/** A list is told by its length: host traces can be as long as the device's. */
function summary(value: PickleValue): Plain {
  if (value instanceof PickleList) {
    return { entries: value.items.length + (value.run?.count ?? 0) };
  }
  return toPlain(value);
}

function wholeNumber(value: PickleValue, field: string, row: number): number {
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) return value;
  const where = row < 0 ? 'a segment or block' : `trace entry ${row}`;
  const shown = typeof value === 'bigint' || typeof value === 'number' ? `${value}` : typeof value;
  throw new UserError(
    'SNAPSHOT_ENTRY',
    `${field} of ${where} is ${shown.slice(0, 40)}, not a whole number below 2^53`,
  );
}

function hex(address: number): string {
  return `0x${address.toString(16)}`;
}
