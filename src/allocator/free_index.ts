// The cached blocks of one pool and stream, in the order in which the allocator prefers them: smallest first, among
// equals the oldest segment, then the lowest address (PyTorch 2.14.1, BlockComparatorSizeCounterAddress).
//
// A sorted list in leaves of at most 32 blocks. Both steps of a search are binary, an insertion moves at most one
// leaf, and nothing is allocated but a new leaf now and then.

import type { Block } from './block.ts';

const LEAF_SHIFT = 5;
const LEAF_SIZE = 1 << LEAF_SHIFT;
const SLOT_MASK = LEAF_SIZE - 1;

/** Where a block stands: leaf number and slot in one integer. Valid until the next insertion or removal. */
export type FreePosition = number;
/** No such position. */
export const NOWHERE: FreePosition = -1;

export class FreeIndex {
  /** No leaf is empty. */
  readonly #leaves: Block[][] = [];
  #length = 0;

  get length(): number {
    return this.#length;
  }

  /** The first block of at least `size` bytes. */
  firstOfSize(size: number): FreePosition {
    const leaves = this.#leaves;
    let low = 0;
    let high = leaves.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const leaf = leaves[middle];
      if (leaf[leaf.length - 1].size < size) low = middle + 1;
      else high = middle;
    }
    if (low === leaves.length) return NOWHERE;
    const leaf = leaves[low];
    let slot = 0;
    high = leaf.length - 1;
    while (slot < high) {
      const middle = (slot + high) >>> 1;
      if (leaf[middle].size < size) slot = middle + 1;
      else high = middle;
    }
    return (low << LEAF_SHIFT) | slot;
  }

  at(position: FreePosition): Block {
    return this.#leaves[position >> LEAF_SHIFT][position & SLOT_MASK];
  }

  /** The position after `position`, or NOWHERE. */
  next(position: FreePosition): FreePosition {
    const leaf = position >> LEAF_SHIFT;
    if ((position & SLOT_MASK) + 1 < this.#leaves[leaf].length) return position + 1;
    return leaf + 1 < this.#leaves.length ? (leaf + 1) << LEAF_SHIFT : NOWHERE;
  }

  /** The position before `position`, or NOWHERE. The position before NOWHERE is the last. */
  previous(position: FreePosition): FreePosition {
    if ((position & SLOT_MASK) > 0 && position !== NOWHERE) return position - 1;
    const leaf = position === NOWHERE ? this.#leaves.length : position >> LEAF_SHIFT;
    if (leaf === 0) return NOWHERE;
    return ((leaf - 1) << LEAF_SHIFT) | (this.#leaves[leaf - 1].length - 1);
  }

  removeAt(position: FreePosition): Block {
    const leafNumber = position >> LEAF_SHIFT;
    const leaf = this.#leaves[leafNumber];
    const slot = position & SLOT_MASK;
    const block = leaf[slot];
    const last = leaf.length - 1;
    for (let at = slot; at < last; at++) leaf[at] = leaf[at + 1];
    leaf.pop();
    if (last === 0) this.#leaves.splice(leafNumber, 1);
    this.#length--;
    return block;
  }

  insert(block: Block): void {
    const leaves = this.#leaves;
    this.#length++;
    if (leaves.length === 0) {
      leaves.push([block]);
      return;
    }
    const leafNumber = Math.min(this.#leafOf(block), leaves.length - 1);
    let leaf = leaves[leafNumber];
    if (leaf.length === LEAF_SIZE) {
      const upper = leaf.splice(LEAF_SIZE >> 1);
      leaves.splice(leafNumber + 1, 0, upper);
      if (before(upper[0], block)) leaf = upper;
    }
    const slot = before(leaf[leaf.length - 1], block) ? leaf.length : slotOf(leaf, block);
    leaf.push(block);
    for (let at = leaf.length - 1; at > slot; at--) leaf[at] = leaf[at - 1];
    leaf[slot] = block;
  }

  /** @throws Error when the block is not in the index: the allocator's own state is broken. */
  remove(block: Block): void {
    const leafNumber = this.#leafOf(block);
    if (leafNumber < this.#leaves.length) {
      const slot = slotOf(this.#leaves[leafNumber], block);
      const position = (leafNumber << LEAF_SHIFT) | slot;
      if (this.#leaves[leafNumber][slot] === block) {
        this.removeAt(position);
        return;
      }
    }
    throw new Error(`no cached block of ${block.size} bytes at ${block.ptr}`);
  }

  *[Symbol.iterator](): Generator<Block> {
    for (const leaf of this.#leaves) yield* leaf;
  }

  /** The first leaf whose last block is not before `block`. */
  #leafOf(block: Block): number {
    const leaves = this.#leaves;
    let low = 0;
    let high = leaves.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const leaf = leaves[middle];
      if (before(leaf[leaf.length - 1], block)) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** The first slot whose block is not before `block`. */
function slotOf(leaf: Block[], block: Block): number {
  let low = 0;
  let high = leaf.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (before(leaf[middle], block)) low = middle + 1;
    else high = middle;
  }
  return low;
}

function before(a: Block, b: Block): boolean {
  if (a.size !== b.size) return a.size < b.size;
  if (a.segment !== b.segment) return a.segment.registration < b.segment.registration;
  return a.ptr < b.ptr;
}
