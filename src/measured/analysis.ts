// A file of any kind, ready for reports: a trace is replayed through the device model, a measured run through its own recording.

import {
  type Analysis,
  type AnalysisOptions,
  analyze,
  DeviceAnalysis,
} from '../attribution/analysis.ts';
import type { Bytes } from '../base/bytes.ts';
import { capacityOf, type DeviceCapacity, parseCapacity } from '../device/gpus.ts';
import { isTraceFile, readMeasuredRun } from './formats.ts';
import type { MeasuredRun } from './measured_run.ts';
import type { SnapshotRunOptions } from './snapshot_run.ts';

export type AnyAnalysisOptions = AnalysisOptions & SnapshotRunOptions;

/**
 * Analyses a trace, a captured run or a snapshot, told apart by content.
 * @throws UserError when it is none of them, cannot be read, or contradicts itself.
 */
export async function analyzeFile(
  path: string,
  options: AnyAnalysisOptions = {},
): Promise<Analysis> {
  if (await isTraceFile(path)) return analyze(path, options);
  return measuredAnalysis(await readMeasuredRun(path, options), options);
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
    externalAt: () => [],
    notes: [],
    freshDevice: null,
  });
  return {
    path: run.path,
    trace: run.trace,
    options,
    devices: [device],
    measured: { format: run.format, censored: run.censored, notes: run.notes },
  };
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
