// The device that a variation is asked to fit on, as a factory for replays.

import { parseAllocatorConf } from '../allocator/config.ts';
import { parseCapacity } from '../device/gpus.ts';
import { deviceForTrace } from '../device/trace_device.ts';
import {
  applyProfile,
  type CalibrationProfile,
  profilePath,
  readProfile,
  topologyDifferences,
  topologyOfTrace,
} from '../measured/calibration/profile.ts';
import { findRelease } from '../nccl/release.ts';
import { findTopology } from '../nccl/topology.ts';
import type { Trace } from '../trace/trace.ts';
import type { DeviceFactory } from './evidence.ts';
import type { Variation } from './variation.ts';
import type { Missing } from './verdict.ts';

export interface Target {
  readonly device: DeviceFactory;
  /** What the device leaves out or takes from elsewhere, for one trace. */
  readonly missing: (trace: Trace) => readonly Missing[];
}

/** What is wrong with a variation's device before any trace of it is made. @throws UserError as {@link targetOf} and its factory. */
export async function checkTarget(
  { gpu, allocator, nccl, profile }: Variation,
  env: Readonly<Record<string, string | undefined>>,
): Promise<void> {
  parseCapacity(gpu);
  if (allocator !== '') parseAllocatorConf(allocator);
  if (nccl.version !== undefined) findRelease(nccl.version);
  if (nccl.topology !== undefined) findTopology(nccl.topology);
  if (profile !== undefined) await readProfile(profilePath(profile, env));
}

/**
 * The factory throws UserError when the GPU, the allocator settings, the NCCL version or the topology is not known.
 * @throws UserError when the calibration profile cannot be read.
 */
export async function targetOf(
  variation: Variation,
  env: Readonly<Record<string, string | undefined>>,
): Promise<Target> {
  const { gpu, allocator, nccl, external, profile: name } = variation;
  const profile = name === undefined ? undefined : await readProfile(profilePath(name, env));
  const capacity = parseCapacity(gpu);
  const gpuName = capacity.gpu?.deviceName ?? capacity.name;
  const calibrated = (trace: Trace) =>
    profile === undefined
      ? []
      : applyProfile(profile, topologyOfTrace(trace, gpuName), { extrapolate: true }).components;
  return {
    device: (trace, _deviceId, bound, bytes) =>
      deviceForTrace(trace.header, {
        gpu,
        allocConf: allocator === '' ? undefined : allocator,
        ncclVersion: nccl.version,
        topology: nccl.topology,
        components: [...external, ...calibrated(trace)],
        bound,
        usableBytes: bytes,
      }).device,
    missing: (trace) => (profile === undefined ? [] : otherTopology(profile, trace, gpuName)),
  };
}

/** A profile of another topology is used, but proves nothing. */
function otherTopology(profile: CalibrationProfile, trace: Trace, gpu: string): Missing[] {
  const differences = topologyDifferences(profile.topology, topologyOfTrace(trace, gpu));
  if (differences.length === 0) return [];
  const what = `a calibration of this topology (profile ${profile.name} is of ${differences.join(', ')})`;
  return [{ what, bytes: null }];
}
