// The private pools of a device, which allocations go to them, and the CUDA graph captures that send them there.
//
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp: create_or_incref_pool, beginAllocateToPool, endAllocateToPool,
// releasePool, get_pool; tables are walked in the order of c10::MempoolIdHash (c10/core/Allocator.h).

import type { BlockPool } from './block_pool.ts';
import { FlatHashMap } from './flat_hash_map.ts';
import { GraphCapture } from './graph_capture.ts';
import { type MempoolId, PrivatePool, type PrivatePoolOptions, sameId } from './private_pool.ts';

/** Allocations on matching streams go to `pool` while the scope is open. */
interface AllocationScope {
  readonly pool: PrivatePool;
  /** Null: every stream. */
  readonly capture: GraphCapture | null;
}

export class PrivatePools {
  readonly #pools = poolTable();
  /** Those that nobody uses any more. */
  readonly #freeable = poolTable();
  /** Those whose cached blocks may serve the default pool before the program runs out of memory. */
  readonly #lenders = poolTable();
  /** Innermost last. */
  readonly #scopes: AllocationScope[] = [];
  readonly #captures: GraphCapture[] = [];
  #mempools = 0;
  #graphPools = 0;

  get isCapturing(): boolean {
    return this.#captures.length > 0;
  }

  /** A new pool, with one user. */
  create(options: PrivatePoolOptions): MempoolId {
    const id: MempoolId = [0, ++this.#mempools];
    this.#add(id, options);
    return id;
  }

  /** @throws Error when there is no such pool: the caller's mistake */
  get(id: MempoolId): PrivatePool {
    const pool = this.#pools.get(poolKey(id));
    if (pool === undefined) throw new Error(`there is no private pool ${poolKey(id)}`);
    return pool;
  }

  all(): Iterable<PrivatePool> {
    return this.#pools.values();
  }

  lenders(): Iterable<PrivatePool> {
    return this.#lenders.values();
  }

  stopLending(id: MempoolId): void {
    this.#lenders.delete(poolKey(id));
  }

  /** The pool for a block, or null for the default one. */
  poolFor(isSmall: boolean, stream: number): BlockPool | null {
    for (let at = this.#scopes.length - 1; at >= 0; at--) {
      const { pool, capture } = this.#scopes[at];
      if (capture === null || capture.streams.has(stream)) return isSmall ? pool.small : pool.large;
    }
    return null;
  }

  /** One user more, and allocations go there. Makes the pool when there is none. */
  openScope(id: MempoolId): void {
    this.#scopes.push({ pool: this.#use(id), capture: null });
  }

  /** @throws Error when no scope is open for the pool */
  closeScope(id: MempoolId): void {
    const at = this.#scopes.findIndex((scope) => sameId(scope.pool.id, id));
    if (at < 0) throw new Error(`allocations do not go to pool ${poolKey(id)}`);
    this.#scopes.splice(at, 1);
  }

  /** One user fewer. */
  release(id: MempoolId): void {
    const pool = this.get(id);
    pool.useCount--;
    if (pool.useCount > 0) return;
    pool.noSplit = false;
    this.#freeable.add(poolKey(id), pool);
  }

  /** Visits the pools that nobody uses; those that `keep` says false to no longer exist. */
  retainFreeable(keep: (pool: PrivatePool) => boolean): void {
    this.#freeable.retain((pool) => keep(pool) || !this.#pools.delete(poolKey(pool.id)));
  }

  /** @param sharedWith an existing pool; a new one when left out */
  beginCapture(stream: number, sharedWith?: MempoolId): MempoolId {
    if (this.captureOf(stream) !== null)
      throw new Error(`stream ${stream} is under capture already`);
    const id: MempoolId = sharedWith ?? [++this.#graphPools, 0];
    const pool = this.#use(id);
    const capture = new GraphCapture(pool, stream);
    this.#scopes.push({ pool, capture });
    this.#captures.push(capture);
    return id;
  }

  /** The scope stays open. @throws Error when no graph is captured into the pool */
  endCapture(id: MempoolId): void {
    const at = this.#captures.findIndex((capture) => sameId(capture.pool.id, id));
    if (at < 0) throw new Error(`no graph is captured into pool ${poolKey(id)}`);
    this.#captures.splice(at, 1);
  }

  captureOf(stream: number): GraphCapture | null {
    if (this.#captures.length === 0) return null;
    return this.#captures.find((capture) => capture.streams.has(stream)) ?? null;
  }

  #use(id: MempoolId): PrivatePool {
    const existing = this.#pools.get(poolKey(id));
    if (existing === undefined) return this.#add(id);
    if (existing.useCount === 0) throw new Error(`private pool ${poolKey(id)} was released`);
    if (this.#scopes.some((scope) => scope.pool === existing)) {
      throw new Error(`allocations already go to pool ${poolKey(id)}`);
    }
    existing.useCount++;
    return existing;
  }

  #add(id: MempoolId, { noSplit = false, useOnOom = false }: PrivatePoolOptions = {}): PrivatePool {
    const pool = new PrivatePool(id, noSplit);
    this.#pools.add(poolKey(id), pool);
    if (useOnOom) this.#lenders.add(poolKey(id), pool);
    return pool;
  }
}

function poolKey([first, second]: MempoolId): string {
  return `${first},${second}`;
}

function poolTable(): FlatHashMap<string, PrivatePool> {
  return new FlatHashMap((key) => {
    const [first, second] = key.split(',');
    return BigInt(first !== '0' ? first : second);
  });
}
