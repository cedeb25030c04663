// Everything that the caching allocator did in a replay, entry by entry, and how it stands at the end: what
// `torch.cuda.memory._snapshot()` holds of a real run.

import type { AllocatorConfig } from '../allocator/config.ts';
import type { MempoolId } from '../allocator/private_pool.ts';
import type { SegmentSnapshot } from '../allocator/snapshot.ts';
import type { AllocatorListener, TraceAction } from '../allocator/trace_entry.ts';
import type { GpuDevice } from '../device/gpu_device.ts';
import { Float64Column, Uint8Column, Uint32Column } from '../trace/columns.ts';
import type { Trace } from '../trace/trace.ts';
import { replay } from './replay.ts';

export const TRACE_ACTIONS: readonly TraceAction[] = [
  'alloc',
  'free_requested',
  'free_completed',
  'segment_alloc',
  'segment_free',
  'segment_map',
  'segment_unmap',
  'oom',
];

/** Row i is entry i, in the order in which the allocator made them. */
export interface AllocatorHistory {
  readonly length: number;
  /** Index into TRACE_ACTIONS. */
  readonly action: Uint8Array;
  readonly address: Float64Array;
  readonly size: Float64Array;
  readonly stream: Uint32Array;
  /** Index into `pools`. */
  readonly pool: Uint32Array;
  /** The event of the trace during which it happened. */
  readonly event: Uint32Array;
  readonly pools: readonly MempoolId[];
  /** At the end of the replay. */
  readonly segments: readonly SegmentSnapshot[];
  readonly config: AllocatorConfig;
}

/** Replays `trace` on `device`, which must be fresh and is used up. */
export function recordAllocatorHistory(
  trace: Trace,
  deviceId: number,
  device: GpuDevice,
): AllocatorHistory {
  const recorder = new Recorder();
  device.allocator.listener = recorder;
  replay(trace, deviceId, device, {
    beforeEvent: (event) => {
      recorder.now = event;
    },
  });
  device.allocator.listener = null;
  return recorder.finish(device);
}

class Recorder implements AllocatorListener {
  now = 0;
  readonly #action = new Uint8Column();
  readonly #address = new Float64Column();
  readonly #size = new Float64Column();
  readonly #stream = new Uint32Column();
  readonly #pool = new Uint32Column();
  readonly #event = new Uint32Column();
  readonly #pools: MempoolId[] = [];
  readonly #poolIndex = new Map<string, number>();

  entry(action: TraceAction, address: number, size: number, stream: number, pool: MempoolId): void {
    this.#action.push(TRACE_ACTIONS.indexOf(action));
    this.#address.push(address);
    this.#size.push(size);
    this.#stream.push(stream);
    this.#pool.push(this.#indexOf(pool));
    this.#event.push(this.now);
  }

  finish(device: GpuDevice): AllocatorHistory {
    return {
      length: this.#action.length,
      action: this.#action.view(),
      address: this.#address.view(),
      size: this.#size.view(),
      stream: this.#stream.view(),
      pool: this.#pool.view(),
      event: this.#event.view(),
      pools: this.#pools,
      segments: device.allocator.snapshot(),
      config: device.allocator.config,
    };
  }

  #indexOf(pool: MempoolId): number {
    const key = `${pool[0]},${pool[1]}`;
    let index = this.#poolIndex.get(key);
    if (index === undefined) {
      index = this.#pools.length;
      this.#pools.push(pool);
      this.#poolIndex.set(key, index);
    }
    return index;
  }
}
