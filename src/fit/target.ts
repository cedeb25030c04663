// The device that a variation is asked to fit on, as a factory for replays.

import { deviceForTrace } from '../device/trace_device.ts';
import type { DeviceFactory } from './evidence.ts';
import type { Variation } from './variation.ts';
import type { Missing } from './verdict.ts';

export interface Target {
  readonly device: DeviceFactory;
  readonly missing: readonly Missing[];
}

/** The factory throws UserError when the GPU, the allocator settings, the NCCL version or the topology is not known. */
export function targetOf(variation: Variation): Target {
  const { gpu, allocator, nccl, external } = variation;
  return {
    device: (trace, _deviceId, bound, capacity) =>
      deviceForTrace(trace.header, {
        gpu,
        allocConf: allocator === '' ? undefined : allocator,
        ncclVersion: nccl.version,
        topology: nccl.topology,
        components: external,
        bound,
        usableBytes: capacity,
      }).device,
    missing: [],
  };
}
