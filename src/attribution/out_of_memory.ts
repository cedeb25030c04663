// The moment the device is full: who asked, for how much, and what was live by category just before.

import type { ExternalPart } from '../device/gpu_device.ts';
import { framesOf } from '../trace/trace.ts';
import type { DeviceAnalysis } from './analysis.ts';
import type { OwnerShare } from './attribution.ts';
import type { Frame } from './frames.ts';
import { ModuleNames } from './module_name.ts';

export interface FullDevice {
  /** The event that failed. */
  readonly event: number;
  /** The operator that asked; '' for what is no tensor (NCCL, a component). */
  readonly operator: string;
  /** Its module; '' outside every module. */
  readonly module: string;
  /** Its Python stack, innermost first. Empty where none was kept. */
  readonly frames: readonly Frame[];
  /** Blocks live just before, by owner. */
  readonly owners: readonly OwnerShare[];
  /** Bytes of live blocks that no storage of the trace accounts for. */
  readonly rest: number;
  /** What stood outside the allocator just before. */
  readonly external: readonly ExternalPart[];
}

/** Undefined when the device was never full. */
export function fullDeviceOf(device: DeviceAnalysis): FullDevice | undefined {
  const { outOfMemory, timeline } = device;
  if (outOfMemory === null) return undefined;
  const { trace } = timeline;
  const { events } = trace;
  const { event } = outOfMemory;
  // Only the allocator's failure is an event of a storage: the others carry no operator, module or stack.
  const storage = outOfMemory.kind === 'allocator';
  const before = Math.max(0, event - 1);
  const attribution = device.attributionAt(before);
  return {
    event,
    operator: storage ? trace.strings[events.op[event]] : '',
    module: storage ? new ModuleNames(trace).of(events.module[event]) : '',
    frames: storage ? framesOf(trace, events.stack[event]) : [],
    owners: event === 0 ? [] : attribution.owners,
    rest: event === 0 ? 0 : attribution.rest,
    external: device.externalAt(before),
  };
}
