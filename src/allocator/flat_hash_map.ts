// A map that is walked in the order in which PyTorch walks the same keys. The allocator goes over hash tables of
// streams and of pools, and what it meets first makes a difference: which of two neighbours comes back to the cache
// last, which pool lends a block. The table is ska::flat_hash_map with Fibonacci hashing, Robin Hood probing and
// backward-shift deletion (c10/util/flat_hash_map.h, sherwood_v3_table, MIT/Boost licence); this keeps the positions as
// that one does.

interface Entry<K, V> {
  readonly key: K;
  readonly value: V;
  /** The hash times the golden ratio, 64 bits: its high bits are the wanted slot. */
  readonly product: bigint;
  /** Slots behind the wanted one. */
  distance: number;
}

const GOLDEN_RATIO = 11400714819323198485n;
const MIN_LOOKUPS = 4;
const MAX_LOAD = 0.5;

export class FlatHashMap<K extends string | number, V> {
  readonly #hash: (key: K) => bigint;
  readonly #byKey = new Map<K, V>();
  #buckets = 0;
  #maxLookups = MIN_LOOKUPS - 1;
  #used = 0;
  /** Buckets and room for the entries that the last ones push on. */
  #slots: (Entry<K, V> | null)[] = [];

  /** @param hash the 64-bit std::hash of a key */
  constructor(hash: (key: K) => bigint) {
    this.#hash = hash;
  }

  get size(): number {
    return this.#byKey.size;
  }

  get(key: K): V | undefined {
    return this.#byKey.get(key);
  }

  /** Adds a key that is not there yet. */
  add(key: K, value: V): void {
    if (this.#byKey.has(key)) throw new Error(`the key ${key} is in the table already`);
    const product = BigInt.asUintN(64, GOLDEN_RATIO * this.#hash(key));
    this.#place({ key, value, product, distance: 0 });
    this.#byKey.set(key, value);
  }

  delete(key: K): boolean {
    if (!this.#byKey.delete(key)) return false;
    this.#removeAt(this.#slots.findIndex((entry) => entry?.key === key));
    return true;
  }

  /** Visits every value in the table's order and removes those that `keep` says false to. */
  retain(keep: (value: V) => boolean): void {
    let slot = 0;
    while (slot < this.#slots.length) {
      const entry = this.#slots[slot];
      if (entry === null || keep(entry.value)) {
        slot++;
      } else {
        // The next entry may move into this slot: look at it again.
        this.#byKey.delete(entry.key);
        this.#removeAt(slot);
      }
    }
  }

  *values(): Generator<V> {
    for (const entry of this.#slots) if (entry !== null) yield entry.value;
  }

  #place(added: Entry<K, V>): void {
    if (this.#buckets === 0 || this.#used + 1 > this.#buckets * MAX_LOAD) {
      this.#grow(added);
      return;
    }
    let slot = this.#wantedSlot(added);
    added.distance = 0;
    while ((this.#slots[slot]?.distance ?? -1) >= added.distance) {
      slot++;
      added.distance++;
    }
    if (added.distance === this.#maxLookups) {
      this.#grow(added);
      return;
    }
    // Robin Hood: whoever is nearer to its wanted slot makes room and moves on.
    const addedSlot = slot;
    let moving = this.#slots[slot] ?? null;
    this.#slots[slot] = added;
    while (moving !== null) {
      slot++;
      moving.distance++;
      const present: Entry<K, V> | null = this.#slots[slot] ?? null;
      if (present === null || present.distance < moving.distance) {
        this.#slots[slot] = moving;
        moving = present;
      } else if (moving.distance + 1 === this.#maxLookups) {
        this.#slots[addedSlot] = moving;
        this.#grow(added);
        return;
      }
    }
    this.#used++;
  }

  #grow(added: Entry<K, V>): void {
    const old = this.#slots;
    this.#buckets = Math.max(4, 2 * this.#buckets);
    this.#maxLookups = Math.max(MIN_LOOKUPS, Math.log2(this.#buckets));
    this.#slots = new Array<Entry<K, V> | null>(this.#buckets + this.#maxLookups - 1).fill(null);
    this.#used = 0;
    for (const entry of old) if (entry !== null) this.#place(entry);
    this.#place(added);
  }

  #removeAt(slot: number): void {
    let at = slot;
    this.#slots[at] = null;
    this.#used--;
    for (let next = this.#slots[at + 1]; next && next.distance > 0; next = this.#slots[at + 1]) {
      next.distance--;
      this.#slots[at] = next;
      this.#slots[at + 1] = null;
      at++;
    }
  }

  #wantedSlot(entry: Entry<K, V>): number {
    return Number(entry.product >> BigInt(64 - Math.log2(this.#buckets)));
  }
}
