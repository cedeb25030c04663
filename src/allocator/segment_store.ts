// Memory on its way from and to the driver: makes, grows, unmaps and frees segments, joins neighbouring blocks, and
// keeps the counters that go with it. Which block serves a request, and when memory goes back, is decided in
// caching_allocator.ts.
//
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp: alloc_block, find_expandable_block, map_block,
// try_allocate_expandable_block, try_merge_blocks, release_block, unmap_block, release_blocks.

import { roundUp } from '../base/bytes.ts';
import { Block } from './block.ts';
import type { BlockPool } from './block_pool.ts';
import type { AllocatorConfig } from './config.ts';
import { type AddressRange, DRIVER_PAGE, type DriverMemory } from './driver.ts';
import { ExpandableSegment } from './expandable_segment.ts';
import { DEFAULT_POOL } from './private_pool.ts';
import { Segment } from './segment.ts';
import { SMALL_SEGMENT_SIZE } from './size_class.ts';
import { DeviceStats, Stat } from './stats.ts';
import type { StreamClock } from './stream_clock.ts';
import type { AllocatorListener, TraceAction } from './trace_entry.ts';

export interface SegmentStoreOptions {
  readonly driver: DriverMemory;
  readonly addresses: AddressRange;
  readonly virtualAddresses: AddressRange;
  readonly clock: StreamClock;
  /** Whether freeing device memory waits for all streams, as cudaFree on a GPU does. */
  readonly freeSynchronizes: boolean;
}

export class SegmentStore {
  readonly stats: DeviceStats;
  readonly segments = new Set<Segment>();
  /** Bytes obtained from the driver: reserved memory. */
  totalBytes = 0;
  config: AllocatorConfig;
  listener: AllocatorListener | null = null;
  /** Called where PyTorch 2.14.1 corrupts its own memory or stops on an internal assertion. */
  onUndefined: (reason: string) => void = () => {};
  readonly #options: SegmentStoreOptions;
  #registrations = 0;

  constructor(config: AllocatorConfig, options: SegmentStoreOptions) {
    this.config = config;
    this.stats = new DeviceStats(config.maxSplitSize);
    this.#options = options;
  }

  /** cudaMalloc of `size` bytes. @returns the one block of the new segment, not cached; null when memory is short. */
  allocateFixed(pool: BlockPool, stream: number, size: number): Block | null {
    const { driver, addresses } = this.#options;
    if (!driver.tryTake(roundUp(size, DRIVER_PAGE))) return null;
    const segment = new Segment(pool, stream, this.#registrations++);
    const block = new Block(segment, addresses.take(size), size);
    block.linkBetween(null, null);
    this.segments.add(segment);
    if (pool.owner !== null) pool.owner.driverAllocations++;
    this.stats.increase(Stat.segment, pool.isSmall, 1);
    this.#reserved(pool, size);
    if (size >= this.config.maxSplitSize) this.stats.oversizeSegments.increase(1);
    this.stats.numDeviceAlloc++;
    this.record('segment_alloc', block.ptr, size, segment);
    return block;
  }

  /**
   * Grows an expandable segment until it has a free block of at least `size` bytes.
   * @returns that block, no longer cached; null when memory is short (what was mapped on the way stays mapped)
   */
  allocateExpandable(pool: BlockPool, stream: number, size: number): Block | null {
    let candidate = this.#findExpandable(pool, stream, size);
    if (!candidate.mapped && !this.#map(candidate, Math.min(candidate.size, size))) return null;
    while (candidate.size < size) {
      // The candidate is free and mapped, and what follows is unmapped: mapping it joins the two.
      const following = candidate.next as Block;
      const missing = Math.min(size - candidate.size, following.size);
      if (!this.#map(following, missing)) return null;
      candidate = following;
    }
    candidate.segment.streamBlocks.free.remove(candidate);
    // Up once for each allocation, down once for each unmapped block: PyTorch's count can part from the truth.
    if (pool.owner !== null) pool.owner.driverAllocations++;
    return candidate;
  }

  /** cudaFree of a cached block that is a whole fixed segment. */
  release(block: Block): void {
    const { segment, size } = block;
    const { pool } = segment;
    this.stats.numDeviceFree++;
    this.record('segment_free', block.ptr, size, segment);
    this.#options.driver.give(roundUp(size, DRIVER_PAGE));
    this.#freed();
    if (pool.owner !== null) pool.owner.driverAllocations--;
    this.stats.decrease(Stat.segment, pool.isSmall, 1);
    this.#unreserved(pool, size);
    if (size >= this.config.maxSplitSize) this.stats.oversizeSegments.decrease(1);
    segment.streamBlocks.free.remove(block);
    this.segments.delete(segment);
  }

  /** Gives back every whole fixed segment that is cached in the pool, and every free granule of expandable ones. */
  releaseCached(pool: BlockPool): void {
    const cached = [...pool.freeBlocks()];
    for (const block of cached) {
      if (!block.segment.expandable && !block.isSplit) this.release(block);
    }
    for (const block of cached) {
      if (block.segment.expandable) this.#unmap(block);
    }
  }

  /**
   * Joins `block` with a neighbour when that is free and equally mapped. The neighbour disappears.
   * @returns the neighbour's bytes, or 0
   */
  merge(block: Block, neighbour: Block | null): number {
    if (neighbour === null || neighbour.isActive || block.mapped !== neighbour.mapped) return 0;
    const blocks = neighbour.segment.streamBlocks;
    if (neighbour.mapped) blocks.free.remove(neighbour);
    else blocks.removeUnmapped(neighbour);
    if (block.prev === neighbour) {
      block.ptr = neighbour.ptr;
      block.linkBetween(neighbour.prev, block.next);
    } else {
      block.linkBetween(block.prev, neighbour.next);
    }
    block.size += neighbour.size;
    return neighbour.size;
  }

  record(action: TraceAction, address: number, size: number, segment: Segment): void {
    if (this.listener === null) return;
    const pool = segment.pool.owner?.id ?? DEFAULT_POOL;
    this.listener.entry(action, address, size, segment.stream, pool);
  }

  /** The lowest address with room for `size` bytes of free and unmapped blocks; a new segment when there is none. */
  #findExpandable(pool: BlockPool, stream: number, size: number): Block {
    for (const unmapped of pool.forStream(stream).unmapped) {
      const start = unmapped.prev !== null && !unmapped.prev.isActive ? unmapped.prev : unmapped;
      if (hasRoom(start, size)) return start;
    }
    const { driver, virtualAddresses } = this.#options;
    const granule = pool.isSmall ? SMALL_SEGMENT_SIZE : this.config.largeSegmentSize;
    const registration = this.#registrations++;
    const segment = new ExpandableSegment(
      pool,
      stream,
      registration,
      granule,
      driver,
      virtualAddresses,
    );
    const block = new Block(segment, segment.address, segment.size);
    block.mapped = false;
    block.linkBetween(null, null);
    this.segments.add(segment);
    segment.streamBlocks.insertUnmapped(block);
    return block;
  }

  /** Maps at least the first `size` bytes of an unmapped block and caches the result, joined with its neighbours. */
  #map(block: Block, size: number): boolean {
    const segment = block.segment as ExpandableSegment;
    const { pool } = segment;
    const mapped = segment.map(size);
    if (mapped === 0) return false;
    const address = block.ptr;
    segment.streamBlocks.removeUnmapped(block);
    block.mapped = true;
    if (mapped < block.size) {
      const rest = new Block(segment, block.ptr + mapped, block.size - mapped);
      rest.mapped = false;
      rest.linkBetween(block, block.next);
      segment.streamBlocks.insertUnmapped(rest);
      block.size = mapped;
    }
    this.merge(block, block.prev);
    this.merge(block, block.next);
    pool.insertFree(block);
    this.#reserved(pool, mapped);
    this.stats.numDeviceAlloc++;
    this.record('segment_map', address, mapped, segment);
    return true;
  }

  /** Unmaps the whole granules inside a cached block; what lies before and after them stays cached. */
  #unmap(block: Block): void {
    const segment = block.segment as ExpandableSegment;
    const { pool, streamBlocks } = segment;
    const unmapped = segment.unmap(block.ptr, block.size);
    if (unmapped.size === 0) return;
    // Unlike cudaFree, cuMemUnmap does not wait by itself: PyTorch synchronizes the segment's stream first.
    this.#options.clock.complete(segment.stream);
    this.#freed();
    streamBlocks.free.remove(block);
    const before = unmapped.address - block.ptr;
    if (before > 0) {
      const front = new Block(segment, block.ptr, before);
      front.linkBetween(block.prev, block);
      pool.insertFree(front);
    }
    const after = block.size - before - unmapped.size;
    if (after > 0) {
      const back = new Block(segment, unmapped.address + unmapped.size, after);
      back.linkBetween(block, block.next);
      pool.insertFree(back);
    }
    block.ptr = unmapped.address;
    block.size = unmapped.size;
    block.mapped = false;
    this.merge(block, block.prev);
    this.merge(block, block.next);
    streamBlocks.insertUnmapped(block);
    this.#unreserved(pool, unmapped.size);
    this.#countUnmapped(pool);
    this.stats.numDeviceFree++;
    this.record('segment_unmap', unmapped.address, unmapped.size, segment);
    if (!block.isSplit) {
      streamBlocks.removeUnmapped(block);
      this.segments.delete(segment);
    }
  }

  #countUnmapped(pool: BlockPool): void {
    if (pool.owner === null) return;
    if (pool.owner.driverAllocations > 0) {
      pool.owner.driverAllocations--;
      return;
    }
    this.onUndefined(
      `private pool ${pool.owner.id.join(',')}: PyTorch 2.14.1 counts one driver allocation for each allocation that ` +
        'grew an expandable segment, but one free for each unmapped block; its count would pass below zero here, ' +
        'where it stops on an internal assertion',
    );
  }

  #reserved(pool: BlockPool, bytes: number): void {
    this.totalBytes += bytes;
    this.stats.increase(Stat.reservedBytes, pool.isSmall, bytes);
    if (pool.owner !== null) this.stats.privatePool(pool.owner.id).increase(pool.isSmall, bytes);
  }

  #unreserved(pool: BlockPool, bytes: number): void {
    this.totalBytes -= bytes;
    this.stats.decrease(Stat.reservedBytes, pool.isSmall, bytes);
    if (pool.owner !== null) this.stats.privatePool(pool.owner.id).decrease(pool.isSmall, bytes);
  }

  #freed(): void {
    if (this.#options.freeSynchronizes) this.#options.clock.completeAll();
  }
}

function hasRoom(start: Block, size: number): boolean {
  let bytes = 0;
  let block: Block | null = start;
  while (bytes < size && block !== null && !block.isActive) {
    bytes += block.size;
    block = block.next;
  }
  return bytes >= size;
}
