// Who holds which bytes of the reserved memory: every segment cut into blocks, live or free, at one point of a history.
//
// A trace entry says where an allocation lies and how much was asked for, not how large its block is. Free neighbours are
// always merged and an allocation takes the front of a free block, so the extent of the free block is known from the
// entries before, and the allocator's split rule gives the size of the new block. The rule is the same in torch 2.1 to 2.14
// (c10/cuda/CUDACachingAllocator.cpp, should_split):
//   small pool and expandable segments: split when at least 512 B remain;
//   large pool, fixed segments: split when the request is below max_split_size and more than 1 MiB remains.

import { MIN_BLOCK_SIZE, SMALL_SIZE } from '../../allocator/size_class.ts';

export interface SplitRule {
  /** Infinity when unlimited. */
  readonly maxSplitSize: number;
}

/** What a segment is made of, as far as the split rule asks. */
export type SegmentKind = 'small' | 'large' | 'expandable';

/** Bytes of the block that a request, rounded to `rounded` bytes, takes from a free block of `free` bytes. */
export function blockSizeFrom(
  free: number,
  rounded: number,
  kind: SegmentKind,
  rule: SplitRule,
): number {
  const rest = free - rounded;
  if (kind === 'large') {
    return rounded < rule.maxSplitSize && rest > SMALL_SIZE ? rounded : free;
  }
  return rest >= MIN_BLOCK_SIZE ? rounded : free;
}

/** A request's smallest and largest possible block when nothing but the room behind it is known. */
export function blockBounds(
  room: number,
  rounded: number,
  kind: SegmentKind,
  rule: SplitRule,
): { low: number; high: number } {
  if (room < rounded) return { low: room, high: room };
  if (kind !== 'large') {
    // An unsplit rest is below 512 B, and sizes are multiples of 512.
    return { low: rounded, high: rounded };
  }
  // Every block of the large pool is above 1 MiB, the free ones too: a smaller rest belongs to the block.
  if (room - rounded <= SMALL_SIZE) return { low: room, high: room };
  return { low: rounded, high: rounded < rule.maxSplitSize ? rounded + SMALL_SIZE : room };
}

export interface MappedBlock {
  address: number;
  /** Physical size; of an open block: the room up to the next known block. */
  size: number;
  kind: SegmentKind;
  live: boolean;
  /** The end of the block is not known: free room may follow it inside `size`. */
  open: boolean;
  previous: MappedBlock | undefined;
  next: MappedBlock | undefined;
}

/** All blocks by address. Keeps no rules of its own beyond the sums; the history checks what it asks for. */
export class BlockMap {
  readonly #byAddress = new Map<number, MappedBlock>();
  /** Open blocks by address, for finding the one that an address lies in. */
  readonly #open: MappedBlock[] = [];
  activeBytes = 0;
  freeBytes = 0;

  at(address: number): MappedBlock | undefined {
    return this.#byAddress.get(address);
  }

  /** A new stretch of reserved memory, free. `before` ends where it starts (an expandable segment that grows). */
  reserve(address: number, size: number, kind: SegmentKind, before?: MappedBlock): MappedBlock {
    const block: MappedBlock = {
      address,
      size,
      kind,
      live: false,
      open: false,
      previous: undefined,
      next: undefined,
    };
    this.#byAddress.set(address, block);
    this.freeBytes += size;
    if (before !== undefined) {
      before.next = block;
      block.previous = before;
    }
    return block;
  }

  /** Links two blocks that touch: a range that was mapped between two others. */
  link(first: MappedBlock, second: MappedBlock): void {
    first.next = second;
    second.previous = first;
  }

  /** Cuts `size` bytes off the front of a free block; the rest becomes a block of its own. */
  splitFront(block: MappedBlock, size: number): void {
    const rest: MappedBlock = {
      address: block.address + size,
      size: block.size - size,
      kind: block.kind,
      live: block.live,
      open: false,
      previous: block,
      next: block.next,
    };
    if (block.next !== undefined) block.next.previous = rest;
    block.next = rest;
    block.size = size;
    this.#byAddress.set(rest.address, rest);
  }

  /** Marks a free block live. */
  take(block: MappedBlock, open: boolean): void {
    block.live = true;
    this.freeBytes -= block.size;
    this.activeBytes += block.size;
    if (open) {
      block.open = true;
      this.#open.splice(this.#openIndex(block.address) + 1, 0, block);
    }
  }

  /** Marks a live block free and merges it with its free neighbours. Returns the merged block. */
  release(block: MappedBlock): MappedBlock {
    block.live = false;
    this.activeBytes -= block.size;
    this.freeBytes += block.size;
    if (block.open) this.#close(block);
    return this.merge(block);
  }

  /** Merges a free block with its free neighbours. */
  merge(block: MappedBlock): MappedBlock {
    let merged = block;
    const { previous } = block;
    if (previous !== undefined && !previous.live) {
      this.#absorb(previous, block);
      merged = previous;
    }
    const { next } = merged;
    if (next !== undefined && !next.live) this.#absorb(merged, next);
    return merged;
  }

  /** The open live block that `address` lies in (not at its start), or undefined. */
  openAround(address: number): MappedBlock | undefined {
    const block = this.#open[this.#openIndex(address)];
    if (block === undefined || address <= block.address) return undefined;
    return address < block.address + block.size ? block : undefined;
  }

  /** Ends an open block at `size` bytes; the room behind becomes a free block. */
  closeAt(block: MappedBlock, size: number): void {
    this.#close(block);
    if (size === block.size) return;
    const rest = block.size - size;
    this.splitFront(block, size);
    const free = block.next as MappedBlock;
    free.live = false;
    this.activeBytes -= rest;
    this.freeBytes += rest;
    this.merge(free);
  }

  /** Removes a whole free block, unlinking it from its neighbours. */
  remove(block: MappedBlock): void {
    this.#byAddress.delete(block.address);
    this.freeBytes -= block.size;
    if (block.previous !== undefined) block.previous.next = undefined;
    if (block.next !== undefined) block.next.previous = undefined;
  }

  #close(block: MappedBlock): void {
    block.open = false;
    const index = this.#openIndex(block.address);
    if (this.#open[index] === block) this.#open.splice(index, 1);
  }

  #absorb(first: MappedBlock, second: MappedBlock): void {
    first.size += second.size;
    first.next = second.next;
    if (second.next !== undefined) second.next.previous = first;
    this.#byAddress.delete(second.address);
  }

  #openIndex(address: number): number {
    let low = 0;
    let high = this.#open.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.#open[middle].address <= address) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }
}
