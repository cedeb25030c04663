// A file of any kind, ready for reports: a trace is replayed through the device model, a measured run through its own recording.

import {
  type Analysis,
  type AnalysisOptions,
  analyze,
  analyzeTrace,
  DeviceAnalysis,
} from '../attribution/analysis.ts';
import type { Bytes } from '../base/bytes.ts';
import type { ExternalPart } from '../device/gpu_device.ts';
import { capacityOf, type DeviceCapacity, parseCapacity } from '../device/gpus.ts';
import { readTrace } from '../trace/reader.ts';
import { configurationOf } from './calibration/calibrate.ts';
import { applyProfile, profilePath, readProfile, topologyOfTrace } from './calibration/profile.ts';
import type { CapturedRun } from './capture/capture_run.ts';
import { isTraceFile, readMeasuredRun, recordedSnapshot } from './formats.ts';
import type { MeasuredRun } from './measured_run.ts';
import type { SnapshotRunOptions } from './snapshot_run.ts';

export interface ProfileOptions {
  /** Name or path of a calibration profile, for an estimate's memory outside the allocator. */
  readonly profile?: string;
  /** Use the profile although it was measured on another topology; its evidence is then `assumed`. */
  readonly extrapolate?: boolean;
}

export type AnyAnalysisOptions = AnalysisOptions & SnapshotRunOptions & ProfileOptions;

/**
 * Analyses a trace, a captured run or a snapshot, told apart by content.
 * @throws UserError when it is none of them, cannot be read, or contradicts itself.
 */
export async function analyzeFile(
  path: string,
  options: AnyAnalysisOptions = {},
): Promise<Analysis> {
  if (!(await isTraceFile(path))) {
    return measuredAnalysis(await readMeasuredRun(path, options), options);
  }
  return options.profile === undefined
    ? analyze(path, options)
    : calibratedAnalysis(path, options.profile, options);
}

/** An estimate with a measured figure for what is outside the allocator. */
async function calibratedAnalysis(
  path: string,
  profileName: string,
  options: AnyAnalysisOptions,
): Promise<Analysis> {
  const profile = await readProfile(profilePath(profileName, process.env));
  const trace = await readTrace(path);
  const gpu = options.gpu === undefined ? trace.header.gpu.name : deviceName(options.gpu);
  const { components, notes } = applyProfile(profile, topologyOfTrace(trace, gpu), options);
  const analysis = analyzeTrace(
    trace,
    { ...options, components: [...(options.components ?? []), ...components] },
    path,
  );
  const { name, configurations } = profile;
  return { ...analysis, calibration: { name, configurations, notes } };
}

/** A capacity that is only a number has no name. */
function deviceName(gpu: string): string {
  const capacity = parseCapacity(gpu);
  return capacity.gpu?.deviceName ?? capacity.name;
}

/** @throws UserError when `options.gpu` is not a GPU or a size. */
export function measuredAnalysis(run: MeasuredRun, options: AnalysisOptions = {}): Analysis {
  const meta = run.trace.devices[run.deviceId];
  if (meta === undefined) throw new Error('a measured run without its device');
  const readings = !Number.isNaN(run.timeline.peaks.external.bytes);
  const device = new DeviceAnalysis({
    meta,
    capacity: capacityOfRun(run, options),
    timeline: run.timeline,
    outOfMemory: run.timeline.outOfMemory,
    evidence: { allocator: 'executed', external: readings ? 'executed' : 'unknown' },
    externalAt: (event) => externalReading(run, event),
    notes: [],
    freshDevice: null,
  });
  return {
    path: run.path,
    trace: run.trace,
    options,
    devices: [device],
    measured: {
      format: run.format,
      censored: run.censored,
      snapshot: () => recordedSnapshot(run.path),
      notes: run.notes,
      ...(isCaptured(run)
        ? { purpose: run.capture.purpose, configuration: configurationOf(run.capture) }
        : {}),
    },
  };
}

function isCaptured(run: MeasuredRun): run is CapturedRun {
  return 'capture' in run;
}

/** What the driver said, at the events where it was asked. */
function externalReading(run: MeasuredRun, event: number): ExternalPart[] {
  const bytes = run.timeline.series.external[event];
  if (bytes === undefined || Number.isNaN(bytes)) return [];
  return [
    {
      name: 'device memory outside the allocator',
      category: 'residual',
      bytes,
      low: bytes,
      high: bytes,
      evidence: 'executed',
      provenance: 'used on the device − reserved, cudaMemGetInfo at a phase boundary',
    },
  ];
}

function capacityOfRun(run: MeasuredRun, options: AnalysisOptions): DeviceCapacity {
  if (options.gpu !== undefined) return parseCapacity(options.gpu);
  if (run.capacity !== undefined) {
    const known = capacityOf(run.capacity as Bytes);
    return { ...known, evidence: 'executed', source: 'the recording' };
  }
  // NaN: a percentage of it is shown as unknown.
  return {
    name: 'a GPU that the recording does not name',
    usableBytes: Number.NaN as Bytes,
    evidence: 'unknown',
    source: 'not recorded; say which with --gpu',
  };
}
