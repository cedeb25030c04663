// One entry of the allocator's history, with the action names of PyTorch's memory snapshots
// (`torch.cuda.memory._snapshot()["device_traces"]`; c10/core/CachingDeviceAllocator.h, TraceEntry::Action).

import type { MempoolId } from './private_pool.ts';

export type TraceAction =
  /** Handed to the program. `size` is the requested size. */
  | 'alloc'
  /** The program let go of it. It may still be in use by another stream. */
  | 'free_requested'
  /** Back in the cache, free for reuse on its stream. */
  | 'free_completed'
  /** cudaMalloc. */
  | 'segment_alloc'
  /** cudaFree. */
  | 'segment_free'
  /** cuMemMap into an expandable segment. */
  | 'segment_map'
  /** cuMemUnmap from an expandable segment. */
  | 'segment_unmap'
  /** `torch.OutOfMemoryError`. */
  | 'oom';

export interface AllocatorListener {
  /**
   * Called for each entry, after the driver call and before the call returns.
   *
   * @param address device address; for `oom` the free device memory in bytes (PyTorch's `device_free`)
   * @param size bytes: requested for alloc and free, the range for segments, the rounded request for `oom`
   * @param stream the `cudaStream_t` value; 0 is the null stream
   * @param pool `[0, 0]` for the default pool
   */
  entry(action: TraceAction, address: number, size: number, stream: number, pool: MempoolId): void;
}
