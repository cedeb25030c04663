// Writes a large CUDA memory snapshot: `npx tsx scripts/bench/generate_snapshot.ts OUT [entries] [stack depth]`.
//
// For measuring how the reader copes with a file of 1 GB and 5 million entries. The pickle has the shape that torch 2.11's
// `_dump_snapshot` gives (protocol 4, keys and frames by memo reference, a list of frames for each entry); the history is
// consistent: blocks of 10 to 30 MiB, one a segment, allocated and freed in turn. Nothing is held in memory.

import { once } from 'node:events';
import { createWriteStream, type WriteStream } from 'node:fs';
import { MiB } from '../../src/base/bytes.ts';

const CHUNK = 4 * MiB;
const SLOTS = 1500;
const LIVE = 1000;
const FRAMES = 3000;
const STACKS = 20_000;

class PickleWriter {
  readonly #out: WriteStream;
  #buffer = Buffer.allocUnsafe(CHUNK + 65536);
  #used = 0;
  #memo = 0;
  bytes = 0;

  constructor(path: string) {
    this.#out = createWriteStream(path);
    this.byte(0x80, 4);
  }

  byte(...values: number[]): void {
    for (const value of values) this.#buffer[this.#used++] = value;
  }

  /** Returns the memo slot of what was just written. */
  memoize(): number {
    this.byte(0x94);
    return this.#memo++;
  }

  get(slot: number): void {
    if (slot < 256) this.byte(0x68, slot);
    else {
      this.byte(0x6a);
      this.#used = this.#buffer.writeUInt32LE(slot, this.#used);
    }
  }

  text(value: string): number {
    const length = Buffer.byteLength(value);
    this.byte(0x8c, length);
    this.#used += this.#buffer.write(value, this.#used);
    return this.memoize();
  }

  integer(value: number): void {
    if (value < 256) this.byte(0x4b, value);
    else if (value < 65536) this.byte(0x4d, value & 255, value >> 8);
    else if (value < 2 ** 31) {
      this.byte(0x4a);
      this.#used = this.#buffer.writeInt32LE(value, this.#used);
    } else {
      // LONG1 in seven bytes: enough for microseconds since 1970.
      this.byte(0x8a, 7);
      this.#used = this.#buffer.writeUIntLE(value % 2 ** 48, this.#used, 6);
      this.byte(Math.floor(value / 2 ** 48));
    }
  }

  /** Waits for the disk when there is enough to write. */
  async drain(force = false): Promise<void> {
    if (!force && this.#used < CHUNK) return;
    this.bytes += this.#used;
    const chunk = Buffer.from(this.#buffer.subarray(0, this.#used));
    this.#used = 0;
    if (!this.#out.write(chunk)) await once(this.#out, 'drain');
  }

  async close(): Promise<void> {
    this.byte(0x2e);
    await this.drain(true);
    this.#out.end();
    await once(this.#out, 'finish');
  }
}

/** A small generator of repeatable numbers (Mulberry32). */
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

async function main(path: string, entries: number, depth: number): Promise<void> {
  const next = random(1);
  const pickle = new PickleWriter(path);
  const keys = new Map<string, number>();
  const key = (name: string): void => {
    const slot = keys.get(name);
    if (slot === undefined) keys.set(name, pickle.text(name));
    else pickle.get(slot);
  };
  pickle.byte(0x7d); // the snapshot
  pickle.memoize();
  pickle.byte(0x28);
  key('device_traces');
  pickle.byte(0x5d);
  pickle.memoize();
  pickle.byte(0x5d); // device 0
  pickle.memoize();

  const frames: number[] = [];
  const frame = (id: number): void => {
    if (frames[id] !== undefined) {
      pickle.get(frames[id]);
      return;
    }
    pickle.byte(0x7d);
    frames[id] = pickle.memoize();
    pickle.byte(0x28);
    key('name');
    pickle.text(`forward_${id}`);
    key('filename');
    pickle.text(`/workspace/training/model/layer_${id % 97}.py`);
    key('line');
    pickle.integer(1 + (id % 2000));
    pickle.byte(0x75);
  };
  // Stacks share their outer frames, as real ones do.
  const stacks = Array.from({ length: STACKS }, (_, stack) =>
    Array.from({ length: depth }, (_, level) =>
      level < depth * 0.6 ? (stack % 50) * 40 + level : Math.floor(next() * FRAMES),
    ).reverse(),
  );

  let time = 1.75e15;
  let written = 0;
  const entry = async (
    action: string,
    address: number,
    size: number,
    stack: number,
  ): Promise<void> => {
    if (written % 1000 === 0) {
      if (written > 0) pickle.byte(0x65);
      pickle.byte(0x28);
    }
    written++;
    pickle.byte(0x7d);
    pickle.memoize();
    pickle.byte(0x28);
    key('action');
    key(action);
    key('addr');
    pickle.integer(address);
    key('size');
    pickle.integer(size);
    key('stream');
    pickle.integer(0);
    key('time_us');
    pickle.integer(time++);
    key('compile_context');
    pickle.text('N/A');
    key('frames');
    pickle.byte(0x5d);
    pickle.memoize();
    pickle.byte(0x28);
    for (const id of stacks[stack]) frame(id);
    pickle.byte(0x65, 0x75);
    await pickle.drain();
  };

  const segmentSize = (slot: number): number => (10 + (slot % 11) * 2) * MiB;
  const address = (slot: number): number => 0x7f00_0000_0000 + slot * 64 * MiB;
  const request = (slot: number): number => segmentSize(slot) - 4096 * (slot % 7);
  const made = new Set<number>();
  const free = Array.from({ length: SLOTS }, (_, slot) => slot);
  const live: number[] = [];
  while (written < entries - 3) {
    if (live.length < LIVE && (live.length === 0 || next() < 0.55)) {
      const slot = free.splice(Math.floor(next() * free.length), 1)[0];
      const stack = Math.floor(next() * STACKS);
      if (!made.has(slot)) {
        made.add(slot);
        await entry('segment_alloc', address(slot), segmentSize(slot), stack);
      }
      await entry('alloc', address(slot), request(slot), stack);
      live.push(slot);
    } else {
      const slot = live.splice(Math.floor(next() * live.length), 1)[0];
      const stack = Math.floor(next() * STACKS);
      await entry('free_requested', address(slot), request(slot), stack);
      await entry('free_completed', address(slot), request(slot), stack);
      free.push(slot);
    }
  }
  pickle.byte(0x65, 0x61); // entries into the device's list, that into device_traces
  key('segments');
  pickle.byte(0x5d);
  pickle.memoize();
  pickle.byte(0x28);
  const alive = new Set(live);
  for (const slot of [...made].sort((a, b) => a - b)) {
    const active = alive.has(slot) ? segmentSize(slot) : 0;
    const requested = alive.has(slot) ? request(slot) : 0;
    pickle.byte(0x7d, 0x28);
    const fields: [string, number | boolean | string][] = [
      ['device', 0],
      ['address', address(slot)],
      ['total_size', segmentSize(slot)],
      ['allocated_size', active],
      ['active_size', active],
      ['requested_size', requested],
      ['stream', 0],
      ['segment_type', 'large'],
      ['is_expandable', false],
    ];
    for (const [name, value] of fields) {
      key(name);
      if (typeof value === 'number') pickle.integer(value);
      else if (typeof value === 'string') key(value);
      else pickle.byte(0x89);
    }
    key('blocks');
    pickle.byte(0x5d, 0x28, 0x7d, 0x28);
    key('address');
    pickle.integer(address(slot));
    key('size');
    pickle.integer(segmentSize(slot));
    key('requested_size');
    pickle.integer(request(slot));
    key('state');
    key(active > 0 ? 'active_allocated' : 'inactive');
    pickle.byte(0x75, 0x65, 0x75);
    await pickle.drain();
  }
  pickle.byte(0x65, 0x75);
  await pickle.close();
  process.stdout.write(`${path}: ${written} entries, ${pickle.bytes} bytes\n`);
}

const [path, entries = '5000000', depth = '32'] = process.argv.slice(2);
if (path === undefined) {
  process.stderr.write('usage: generate_snapshot.ts OUT [entries] [stack depth]\n');
  process.exit(2);
}
await main(path, Number(entries), Number(depth));
