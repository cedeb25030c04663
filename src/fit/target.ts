// The device that a variation is asked to fit on, as a factory for replays, and what its model leaves out.

import { RoundingDevice } from '../device/rounding_device.ts';
import type { DeviceFactory } from './evidence.ts';
import type { Variation } from './variation.ts';
import type { Missing } from './verdict.ts';

export interface Target {
  readonly device: DeviceFactory;
  readonly missing: readonly Missing[];
}

/** @throws UserError when the GPU, the allocator settings, the NCCL version or the topology is not known. */
export function targetOf(_variation: Variation): Target {
  return {
    device: (_trace, _deviceId, _bound, capacity) => new RoundingDevice(capacity),
    missing: [{ what: 'memory outside the caching allocator', bytes: null }],
  };
}
