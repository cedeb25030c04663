// The allocator's state in the shape and with the names of `torch.cuda.memory._snapshot()["segments"]`
// (torch/csrc/cuda/Module.cpp, THCPModule_memorySnapshot).

import type { Block } from './block.ts';
import type { MempoolId } from './private_pool.ts';
import { DEFAULT_POOL } from './private_pool.ts';
import type { Segment } from './segment.ts';

export type BlockState = 'active_allocated' | 'active_pending_free' | 'inactive';

export interface BlockSnapshot {
  readonly address: number;
  readonly size: number;
  readonly requested_size: number;
  readonly state: BlockState;
}

export interface SegmentSnapshot {
  readonly device: number;
  readonly address: number;
  readonly total_size: number;
  readonly allocated_size: number;
  readonly active_size: number;
  readonly requested_size: number;
  readonly stream: number;
  readonly segment_type: 'small' | 'large';
  readonly segment_pool_id: MempoolId;
  readonly is_expandable: boolean;
  readonly blocks: readonly BlockSnapshot[];
}

/** By address. An expandable segment gives one entry for each contiguous mapped range. */
export function snapshotSegments(segments: Iterable<Segment>, device: number): SegmentSnapshot[] {
  const result: SegmentSnapshot[] = [];
  for (const segment of segments) {
    let block = segment.head;
    while (block !== null) {
      const first = block;
      const range: Block[] = [];
      while (block?.mapped) {
        range.push(block);
        block = block.next;
      }
      if (range.length > 0) result.push(snapshotRange(segment, first.ptr, range, device));
      else block = first.next;
    }
  }
  return result.sort((a, b) => a.address - b.address);
}

function snapshotRange(
  segment: Segment,
  address: number,
  blocks: readonly Block[],
  device: number,
): SegmentSnapshot {
  let total = 0;
  let allocated = 0;
  let active = 0;
  let requested = 0;
  for (const block of blocks) {
    total += block.size;
    if (block.allocated) allocated += block.size;
    if (block.isActive) {
      active += block.size;
      requested += block.requested;
    }
  }
  return {
    device,
    address,
    total_size: total,
    allocated_size: allocated,
    active_size: active,
    requested_size: requested,
    stream: segment.stream,
    segment_type: segment.pool.isSmall ? 'small' : 'large',
    segment_pool_id: segment.pool.owner?.id ?? DEFAULT_POOL,
    is_expandable: segment.expandable,
    blocks: blocks.map((block) => ({
      address: block.ptr,
      size: block.size,
      requested_size: block.requested,
      state: block.allocated
        ? 'active_allocated'
        : block.isActive
          ? 'active_pending_free'
          : 'inactive',
    })),
  };
}
