// PyTorch 2.14.1's CUDACachingAllocator for one device: decision for decision what
// c10/cuda/CUDACachingAllocator.cpp does (DeviceCachingAllocator), without a GPU.
//
// Who owns what: this class decides which block serves a request, when a freed block may be used again and when memory
// goes back to the driver. `SegmentStore` moves memory from and to the driver, `BlockPool` and `FreeIndex` hold what is
// cached, `PrivatePools` what belongs to a MemPool or a graph, `StreamEventQueues` and `DeferredFrees` what waits for
// other streams. Everything runs on one thread, as one program's allocations do. tests/oracle runs the real allocator
// beside this one, step by step.

import { Block } from './block.ts';
import { BlockPool } from './block_pool.ts';
import { type AllocatorConfig, parseAllocatorConf } from './config.ts';
import { DeferredFrees } from './deferred_frees.ts';
import {
  type AddressRange,
  type DriverMemory,
  deviceAddresses,
  freeMemory,
  virtualAddresses,
} from './driver.ts';
import { NOWHERE } from './free_index.ts';
import { OutOfMemoryError } from './out_of_memory.ts';
import {
  DEFAULT_POOL,
  type MempoolId,
  type PrivatePool,
  type PrivatePoolOptions,
  sameId,
} from './private_pool.ts';
import { PrivatePools } from './private_pools.ts';
import { SegmentStore } from './segment_store.ts';
import { isSmall, MIN_BLOCK_SIZE, roundSize, SMALL_SIZE, segmentSize } from './size_class.ts';
import { type SegmentSnapshot, snapshotSegments } from './snapshot.ts';
import { type DeviceStats, Stat } from './stats.ts';
import { StreamClock } from './stream_clock.ts';
import { StreamEventQueues } from './stream_events.ts';
import type { AllocatorListener } from './trace_entry.ts';

/** What this allocator is a model of, for reports. */
export const MODELLED_ALLOCATOR = 'CUDACachingAllocator of PyTorch 2.14.1';

export interface CachingAllocatorOptions {
  /** The device's memory, shared with everything else on the device. */
  readonly driver: DriverMemory;
  /** Device index, for messages and snapshots. Default 0. */
  readonly device?: number;
  /** The text of PYTORCH_ALLOC_CONF, or settings parsed before. */
  readonly conf?: string | AllocatorConfig;
  readonly listener?: AllocatorListener;
  /** Progress of the streams. By default every event is complete as soon as it is recorded. */
  readonly clock?: StreamClock;
  /** Addresses of cudaMalloc and of expandable segments; the latter are shared by a process's devices. */
  readonly addresses?: AddressRange;
  readonly virtualAddresses?: AddressRange;
  /** Whether cudaFree waits for all streams of the device, as it does on a GPU. Default false. */
  readonly freeSynchronizes?: boolean;
  /**
   * Called where PyTorch 2.14.1 itself is undefined (it frees memory that is in use, or stops on an internal
   * assertion). This allocator goes on with the sane meaning.
   */
  readonly onUndefined?: (reason: string) => void;
}

/** One allocation on its way through the slow path (PyTorch's AllocParams). */
interface Request {
  readonly requested: number;
  readonly size: number;
  readonly segmentSize: number;
  readonly stream: number;
  readonly pool: BlockPool;
  readonly expandable: boolean;
  rejected: boolean;
}

export class CachingAllocator {
  readonly device: number;
  readonly stats: DeviceStats;
  /** The stream that frees and `emptyCache` happen on; matters only while a graph is captured. */
  currentStream = 0;
  readonly #driver: DriverMemory;
  readonly #store: SegmentStore;
  readonly #clock: StreamClock;
  readonly #events: StreamEventQueues;
  readonly #small = new BlockPool(true, null);
  readonly #large = new BlockPool(false, null);
  readonly #privatePools = new PrivatePools();
  readonly #deferred: DeferredFrees;
  readonly #onUndefined: (reason: string) => void;
  #config: AllocatorConfig;
  /** Bytes that the memory fraction allows, or null. */
  #allowed: number | null = null;
  #collectsGarbage = false;

  /** @throws UserError when `conf` is not valid */
  constructor(options: CachingAllocatorOptions) {
    this.device = options.device ?? 0;
    this.#driver = options.driver;
    this.#clock = options.clock ?? new StreamClock();
    this.#events = new StreamEventQueues(this.device, this.#clock);
    this.#deferred = new DeferredFrees(this.#events, (block) => this.#putBack(block));
    const { conf = '' } = options;
    this.#config = typeof conf === 'string' ? parseAllocatorConf(conf) : conf;
    this.#store = new SegmentStore(this.#config, {
      driver: options.driver,
      addresses: options.addresses ?? deviceAddresses(this.device),
      virtualAddresses: options.virtualAddresses ?? virtualAddresses(),
      clock: this.#clock,
      freeSynchronizes: options.freeSynchronizes ?? false,
    });
    this.#store.listener = options.listener ?? null;
    this.#onUndefined = options.onUndefined ?? (() => {});
    this.#store.onUndefined = this.#onUndefined;
    this.stats = this.#store.stats;
    this.setMemoryFraction(this.#config.perProcessMemoryFraction);
  }

  /** Bytes of live blocks: `torch.cuda.memory_allocated()`. */
  get allocated(): number {
    return this.stats.current(Stat.allocatedBytes);
  }

  get peakAllocated(): number {
    return this.stats.peak(Stat.allocatedBytes);
  }

  /** Bytes of live blocks and of those that wait for a stream. */
  get active(): number {
    return this.stats.current(Stat.activeBytes);
  }

  get peakActive(): number {
    return this.stats.peak(Stat.activeBytes);
  }

  /** Bytes that the program asked for, of active blocks. */
  get requested(): number {
    return this.stats.current(Stat.requestedBytes);
  }

  get peakRequested(): number {
    return this.stats.peak(Stat.requestedBytes);
  }

  /** Bytes held from the driver: `torch.cuda.memory_reserved()`. */
  get reserved(): number {
    return this.#store.totalBytes;
  }

  get peakReserved(): number {
    return this.stats.peak(Stat.reservedBytes);
  }

  get config(): AllocatorConfig {
    return this.#config;
  }

  set listener(listener: AllocatorListener | null) {
    this.#store.listener = listener;
  }

  /**
   * Allocates on a stream.
   *
   * @param requested bytes, at least 1 (PyTorch never asks its allocator for an empty storage)
   * @param stream the `cudaStream_t` value; 0 is the null stream
   * @param pool allocate inside this MemPool, as under `torch.cuda.use_mem_pool`
   * @throws OutOfMemoryError with PyTorch's message
   * @throws RangeError when `requested` is not a positive whole number of bytes
   */
  malloc(requested: number, stream = 0, pool?: MempoolId): Block {
    if (pool !== undefined) return this.#mallocInPool(requested, stream, pool);
    if (!(requested > 0) || !Number.isSafeInteger(requested)) {
      throw new RangeError(`cannot allocate ${requested} bytes`);
    }
    this.#prepareForMalloc(stream);
    const config = this.#config;
    const size = roundSize(requested, config);
    const target = this.#poolFor(size, stream);
    const expandable = config.expandableSegments;
    const block = this.#takeCached(target, stream, size, expandable);
    if (block !== null) return this.#handOut(block, requested, size, expandable);
    return this.#mallocFromDriver({
      requested,
      size,
      segmentSize: segmentSize(size, config),
      stream,
      pool: target,
      expandable,
      rejected: false,
    });
  }

  /**
   * The program lets go of a block. It is cached at once, or, when other streams were recorded on it, once they pass
   * this point (which is noticed at a later `malloc`).
   * @throws Error when the block is not in the program's hands
   */
  free(block: Block): void {
    if (!block.allocated) throw new Error(`the block at ${block.ptr} is not allocated`);
    block.allocated = false;
    const { segment } = block;
    const { stats } = this;
    stats.decrease(Stat.allocation, segment.pool.isSmall, 1);
    stats.decrease(Stat.allocatedBytes, segment.pool.isSmall, block.size);
    if (this.#store.listener !== null) {
      this.#store.record('free_requested', block.ptr, block.requested, segment);
    }
    if (block.size >= this.#config.maxSplitSize) stats.oversizeAllocations.decrease(1);
    if (block.streamUses === null) {
      this.#putBack(block);
      return;
    }
    const capture = this.#privatePools.captureOf(this.currentStream);
    if (capture === null) this.#events.insert(block);
    else {
      const { graphCaptureRecordStreamReuse } = this.#config;
      this.#deferred.add(block, graphCaptureRecordStreamReuse ? capture.freeMarkers(block) : []);
    }
  }

  /** The block is used on another stream from here on (`Tensor.record_stream`). Its own stream is ignored. */
  recordStream(block: Block, stream: number): void {
    if (stream === block.segment.stream) return;
    if (block.streamUses === null) block.streamUses = [stream];
    else if (!block.streamUses.includes(stream)) block.streamUses.push(stream);
    if (this.#privatePools.captureOf(this.currentStream) !== null)
      this.#deferred.recordUse(block, stream);
  }

  /** The GPU has come to the end of what is queued on `stream` (all streams when left out). */
  synchronize(stream?: number): void {
    if (stream === undefined) this.#clock.completeAll();
    else this.#clock.complete(stream);
  }

  /** `torch.cuda.empty_cache()`; with a pool, what deleting that MemPool empties. */
  emptyCache(pool: MempoolId = DEFAULT_POOL): void {
    this.#releaseCached(pool, this.currentStream);
  }

  /** `torch.cuda.memory._set_allocator_settings`. @throws UserError when `conf` is not valid */
  setConf(conf: string): void {
    this.#config = parseAllocatorConf(conf, this.#config);
    this.#store.config = this.#config;
    this.#updateGarbageCollection();
  }

  /** `torch.cuda.set_per_process_memory_fraction`. @throws RangeError outside [0, 1] */
  setMemoryFraction(fraction: number): void {
    if (!(fraction >= 0 && fraction <= 1)) {
      throw new RangeError(`a memory fraction must be from 0 to 1, got ${fraction}`);
    }
    this.#allowed = fraction < 1 ? Math.round(fraction * this.#driver.total) : null;
    this.#updateGarbageCollection();
  }

  /** `torch.cuda.reset_peak_memory_stats`. */
  resetPeak(): void {
    this.stats.resetPeak();
  }

  /** `torch.cuda.reset_accumulated_memory_stats`. */
  resetAccumulated(): void {
    this.stats.resetAccumulated();
  }

  /** Segments and their blocks, by address, with PyTorch's names. Walks every block. */
  snapshot(): SegmentSnapshot[] {
    return snapshotSegments(this.#store.segments, this.device);
  }

  // Private pools

  /** `torch.cuda.MemPool(...)`. @returns its id */
  createPool(options: PrivatePoolOptions = {}): MempoolId {
    return this.#privatePools.create(options);
  }

  /** The end of a `torch.cuda.MemPool`: what is free in it goes back at once, live blocks keep working. */
  deletePool(id: MempoolId): void {
    this.#privatePools.stopLending(id);
    this.releasePool(id);
    this.emptyCache(id);
  }

  /**
   * Until `endAllocateToPool`, allocations go to this pool; the innermost scope wins. Counts as a use of the pool,
   * which `releasePool` ends.
   */
  beginAllocateToPool(id: MempoolId): void {
    this.#privatePools.openScope(id);
  }

  endAllocateToPool(id: MempoolId): void {
    if (this.#config.graphCaptureRecordStreamReuse) {
      this.#deferred.settle(this.#privatePools.get(id));
    }
    this.#privatePools.closeScope(id);
  }

  /** One user fewer. At none the pool's memory goes back at the next `emptyCache` or when memory runs out. */
  releasePool(id: MempoolId): void {
    this.#privatePools.release(id);
  }

  // CUDA graph capture

  /**
   * `CUDAGraph.capture_begin` on `stream`, which becomes the current stream.
   * @param sharedWith the pool of another graph, or of a MemPool, to allocate in
   * @returns the id of the graph's pool; `releasePool` it when the graph is reset
   */
  beginCapture(stream: number, sharedWith?: MempoolId): MempoolId {
    const id = this.#privatePools.beginCapture(stream, sharedWith);
    this.currentStream = stream;
    return id;
  }

  /** A kernel is launched on a stream under capture. Matters for graph_capture_record_stream_reuse only. */
  captureNode(stream: number): void {
    this.#privatePools.captureOf(stream)?.addNode(stream);
  }

  /** `stream` waits for what `other`, a stream under capture, has queued: it joins the capture. */
  captureJoin(stream: number, other: number): void {
    this.#privatePools.captureOf(other)?.join(stream, other);
  }

  /** `CUDAGraph.capture_end`; `stream` is what the program goes on with. */
  endCapture(id: MempoolId, stream = 0): void {
    this.#privatePools.endCapture(id);
    this.currentStream = stream;
    this.endAllocateToPool(id);
  }

  // From here on: how it decides

  #prepareForMalloc(stream: number): void {
    if (!this.#privatePools.isCapturing) {
      if (!this.#deferred.isEmpty) this.#deferred.settle();
      if (!this.#events.isEmpty) this.#events.poll((block) => this.#putBack(block));
      return;
    }
    const capture = this.#privatePools.captureOf(stream);
    if (capture === null) {
      this.#deferred.settle();
      this.#events.poll((block) => this.#putBack(block));
    } else if (this.#config.graphCaptureRecordStreamReuse) {
      this.#deferred.freeProven(capture, stream);
    }
  }

  #mallocInPool(requested: number, stream: number, id: MempoolId): Block {
    this.beginAllocateToPool(id);
    try {
      return this.malloc(requested, stream);
    } finally {
      this.endAllocateToPool(id);
      this.releasePool(id);
    }
  }

  #poolFor(size: number, stream: number): BlockPool {
    const small = isSmall(size);
    return this.#privatePools.poolFor(small, stream) ?? (small ? this.#small : this.#large);
  }

  /** Takes the best cached block out of the index (get_free_block). Only one candidate is ever considered. */
  #takeCached(pool: BlockPool, stream: number, size: number, expandable: boolean): Block | null {
    if (this.#collectsGarbage) pool.searches++;
    const { free } = pool.forStream(stream);
    let at = free.firstOfSize(size);
    if (at === NOWHERE) return null;
    let block = free.at(at);
    if (block.segment.expandable) {
      if (expandable) {
        // Best fit on the size that a block can grow to, not the one it has.
        for (let next = free.next(at); next !== NOWHERE; next = free.next(at)) {
          const other = free.at(next);
          if (!block.segment.expandable || growableSize(other) >= growableSize(block)) break;
          at = next;
          block = other;
        }
      } else {
        do {
          at = free.next(at);
        } while (at !== NOWHERE && free.at(at).segment.expandable);
        if (at === NOWHERE) return null;
        block = free.at(at);
      }
    }
    const { maxSplitSize, maxNonSplitRounding } = this.#config;
    if (size < maxSplitSize) {
      if (block.size >= maxSplitSize) return null;
    } else if (block.size >= size + maxNonSplitRounding) {
      return null;
    }
    return free.removeAt(at);
  }

  /** Hands out the front of a block that is no longer cached, and caches the rest (alloc_found_block). */
  #handOut(found: Block, requested: number, size: number, expandable: boolean): Block {
    const { segment } = found;
    const { pool } = segment;
    const { stats } = this;
    const wasSplit = found.isSplit;
    let block = found;
    if (this.#shouldSplit(found, size, expandable)) {
      block = new Block(segment, found.ptr, size);
      block.linkBetween(found.prev, found);
      found.ptr += size;
      found.size -= size;
      pool.insertFree(found);
      if (!segment.expandable) {
        if (wasSplit) stats.decrease(Stat.inactiveSplitBytes, pool.isSmall, size);
        else {
          stats.increase(Stat.inactiveSplitBytes, pool.isSmall, found.size);
          stats.increase(Stat.inactiveSplit, pool.isSmall, 1);
        }
      }
    } else if (wasSplit && !segment.expandable) {
      stats.decrease(Stat.inactiveSplitBytes, pool.isSmall, block.size);
      stats.decrease(Stat.inactiveSplit, pool.isSmall, 1);
    }
    block.allocated = true;
    block.requested = requested;
    if (pool.owner !== null) pool.owner.activeBlocks++;
    if (this.#store.listener !== null) this.#store.record('alloc', block.ptr, requested, segment);
    stats.increase(Stat.allocation, pool.isSmall, 1);
    stats.increase(Stat.allocatedBytes, pool.isSmall, block.size);
    stats.increase(Stat.active, pool.isSmall, 1);
    stats.increase(Stat.activeBytes, pool.isSmall, block.size);
    stats.increase(Stat.requestedBytes, pool.isSmall, requested);
    if (block.size >= this.#config.maxSplitSize) stats.oversizeAllocations.increase(1);
    return block;
  }

  #shouldSplit(block: Block, size: number, expandable: boolean): boolean {
    const { pool } = block.segment;
    if (pool.owner?.noSplit) return false;
    const rest = block.size - size;
    if (pool.isSmall || expandable) return rest >= MIN_BLOCK_SIZE;
    return size < this.#config.maxSplitSize && rest > SMALL_SIZE;
  }

  /** Caches a block that nobody uses any more, joined with its free neighbours (free_block). */
  #putBack(block: Block): void {
    const { segment } = block;
    const { pool } = segment;
    const { stats } = this;
    const store = this.#store;
    const { size, requested, prev, next } = block;
    if (store.listener !== null) store.record('free_completed', block.ptr, requested, segment);
    const merged = store.merge(block, prev);
    const mergedNext = store.merge(block, next);
    pool.insertFree(block);
    if (pool.owner !== null) pool.owner.activeBlocks--;
    if (!segment.expandable) {
      const split = block.isSplit;
      const count = (split ? 1 : 0) - (merged > 0 ? 1 : 0) - (mergedNext > 0 ? 1 : 0);
      const bytes = (split ? block.size : 0) - merged - mergedNext;
      stats.change(Stat.inactiveSplit, pool.isSmall, count);
      stats.change(Stat.inactiveSplitBytes, pool.isSmall, bytes);
    }
    stats.decrease(Stat.active, pool.isSmall, 1);
    stats.decrease(Stat.activeBytes, pool.isSmall, size);
    stats.decrease(Stat.requestedBytes, pool.isSmall, requested);
  }

  /** Nothing cached fits: asks the driver, and frees memory step by step while that fails. */
  #mallocFromDriver(request: Request): Block {
    if (this.#collectsGarbage) this.#collectGarbage();
    const { requested, size, expandable } = request;
    let block = this.#grow(request, false);
    if (block === null && !request.rejected) {
      const lent = this.#borrowFromPrivatePool(request);
      if (lent !== null) return this.#handOut(lent, requested, size, false);
      if (this.#releaseOversize(request)) block = this.#grow(request, false);
      if (block === null && this.#privatePools.captureOf(request.stream) === null) {
        this.#releaseCached(DEFAULT_POOL, request.stream);
        block = this.#grow(request, true);
      }
    }
    if (block === null) throw this.#outOfMemory(request);
    return this.#handOut(block, requested, size, expandable);
  }

  /** One attempt to get memory from the driver (alloc_block). */
  #grow(request: Request, isRetry: boolean): Block | null {
    const { pool, stream, size, segmentSize } = request;
    if (isRetry) this.stats.numAllocRetries++;
    if (this.#allowed !== null && this.reserved + segmentSize > this.#allowed) return null;
    const { throwOnCudaMallocOom, perProcessMemoryFraction } = this.#config;
    if (
      throwOnCudaMallocOom &&
      this.reserved + segmentSize > Math.floor(perProcessMemoryFraction * this.#driver.total)
    ) {
      this.stats.numOomRejections++;
      request.rejected = true;
      return null;
    }
    return request.expandable
      ? this.#store.allocateExpandable(pool, stream, size)
      : this.#store.allocateFixed(pool, stream, segmentSize);
  }

  /** A cached block of a pool with `use_on_oom` serves the default pool (try_mempool_fallback). */
  #borrowFromPrivatePool({ pool, stream, size }: Request): Block | null {
    if (pool.owner !== null) return null;
    for (const lender of this.#privatePools.lenders()) {
      const block = this.#takeCached(
        isSmall(size) ? lender.small : lender.large,
        stream,
        size,
        false,
      );
      if (block !== null) return block;
    }
    return null;
  }

  /** Frees cached blocks of max_split_size or more, only as many as the request needs. */
  #releaseOversize({ pool, stream, size }: Request): boolean {
    const { maxSplitSize } = this.#config;
    if (maxSplitSize === Number.POSITIVE_INFINITY) return false;
    const wanted = Math.max(size, maxSplitSize);
    const { free } = pool.forStream(stream);
    let at = free.firstOfSize(wanted);
    if (at !== NOWHERE && !free.at(at).segment.expandable) {
      return this.#releaseWhole(free.at(at));
    }
    let released = 0;
    const victims: Block[] = [];
    for (at = free.previous(at); at !== NOWHERE && released < wanted; at = free.previous(at)) {
      const block = free.at(at);
      if (block.size < maxSplitSize) break;
      if (block.segment.expandable) continue;
      victims.push(block);
      released += block.size;
    }
    for (const block of victims) {
      if (!this.#releaseWhole(block)) released -= block.size;
    }
    return released >= wanted;
  }

  #releaseWhole(block: Block): boolean {
    if (block.isSplit) {
      this.#onUndefined(
        `a cached block of ${block.size} bytes at ${block.ptr} is part of a segment, but not smaller than ` +
          'max_split_size_mb, which was lowered after the block was split: PyTorch 2.14.1 gives its address to cudaFree',
      );
      return false;
    }
    this.#store.release(block);
    return true;
  }

  /**
   * Gives cached memory back (release_cached_blocks). For the default pool: everything that is not under capture.
   * For a private pool: that pool, once nobody uses it.
   */
  #releaseCached(id: MempoolId, currentStream: number): void {
    const all = sameId(id, DEFAULT_POOL);
    if (all && this.#privatePools.captureOf(currentStream) === null) {
      this.#synchronizeEvents(null);
      this.#store.releaseCached(this.#large);
      this.#store.releaseCached(this.#small);
    }
    this.#privatePools.retainFreeable((pool) => {
      if (!all) {
        if (!sameId(pool.id, id)) return true;
        this.#synchronizeEvents(pool);
      }
      this.#store.releaseCached(pool.small);
      this.#store.releaseCached(pool.large);
      return !this.#mayDelete(pool);
    });
  }

  /** Whether PyTorch deletes a pool that nobody uses. */
  #mayDelete(pool: PrivatePool): boolean {
    if (pool.driverAllocations > 0) return false;
    if (pool.activeBlocks > 0) {
      this.#onUndefined(
        `private pool ${pool.id.join(',')} still has ${pool.activeBlocks} live blocks, but PyTorch 2.14.1's count of ` +
          'driver allocations is 0, so it deletes the pool and frees those blocks into deleted memory later',
      );
      return false;
    }
    return true;
  }

  /** Frees cached segments that were not used for long (garbage_collect_cached_blocks). Does not wait for streams. */
  #collectGarbage(): void {
    const allowed = this.#allowed as number;
    const limit = Math.floor(this.#config.garbageCollectionThreshold * allowed);
    if (this.reserved <= limit) return;
    const target = this.reserved - limit;
    let age = 0;
    let count = 0;
    for (const block of this.#large.freeBlocks()) {
      if (block.isSplit) continue;
      age += block.age;
      count++;
    }
    let reclaimed = 0;
    let freed = true;
    while (reclaimed < target && freed && count > 0) {
      const threshold = age / count;
      freed = false;
      for (const block of [...this.#large.freeBlocks()]) {
        if (block.isSplit || block.segment.expandable || block.age < threshold) continue;
        freed = true;
        reclaimed += block.size;
        age -= block.age;
        count--;
        this.#store.release(block);
      }
    }
  }

  #outOfMemory(request: Request): OutOfMemoryError {
    const deviceFree = freeMemory(this.#driver);
    let freeInPrivatePools = 0;
    for (const pool of this.#privatePools.all()) {
      freeInPrivatePools += pool.small.freeBytes() + pool.large.freeBytes();
    }
    const error = new OutOfMemoryError(
      {
        device: this.device,
        requested: request.requested,
        size: request.size,
        segmentSize: request.segmentSize,
        stream: request.stream,
        deviceTotal: this.#driver.total,
        deviceFree,
        usedByProcess: this.#driver.usedByProcess(),
        allowed: this.#allowed,
        allocated: this.allocated,
        reserved: this.reserved,
        freeInPrivatePools,
        expandableSegments: this.#config.expandableSegments,
      },
      request.rejected,
    );
    if (!request.rejected) {
      const pool = request.pool.owner?.id ?? DEFAULT_POOL;
      this.#store.listener?.entry('oom', deviceFree, request.size, request.stream, pool);
      this.stats.numOoms++;
    }
    return error;
  }

  #synchronizeEvents(pool: PrivatePool | null): void {
    this.stats.numSyncAllStreams++;
    this.#deferred.settle();
    this.#events.synchronize(pool, (block) => this.#putBack(block));
  }

  #updateGarbageCollection(): void {
    this.#collectsGarbage = this.#allowed !== null && this.#config.garbageCollectionThreshold > 0;
  }
}

/** What an expandable block can grow to: its own size and the unmapped range after it. */
function growableSize(block: Block): number {
  return block.size + (block.next !== null && !block.next.mapped ? block.next.size : 0);
}
