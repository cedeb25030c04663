// Makes the JSON form of a report from an analysis. Every other form that names a figure of the report takes it from here or from the
// same analysis, so that they agree.

import type { Analysis, DeviceAnalysis } from '../attribution/analysis.ts';
import type {
  Attribution,
  ModuleShare,
  OwnerShare,
  Share,
  StackShare,
} from '../attribution/attribution.ts';
import { callSite, type Frame } from '../attribution/frames.ts';
import { growthOf } from '../attribution/growth.ts';
import { ModuleNames } from '../attribution/module_name.ts';
import { fullDeviceOf } from '../attribution/out_of_memory.ts';
import { phaseAt, phaseTitle } from '../attribution/phase_title.ts';
import { tensorRows } from '../attribution/tensors.ts';
import { totalsOf } from '../attribution/totals.ts';
import type { ExternalPart } from '../device/gpu_device.ts';
import { type Instant, MEMORY_KINDS, type MemoryKind, type Peak } from '../timeline/timeline.ts';
import { framesOf, labelOf, type PhaseMeta, type Trace } from '../trace/trace.ts';
import {
  type DeviceReport,
  type PhaseReport,
  REPORT_SCHEMA,
  type ReportDocument,
} from './document_schema.ts';
import { identityOf } from './identity.ts';
import { runMetrics } from './metrics.ts';
import { ownerTitle } from './words.ts';

export interface DocumentOptions {
  /** Whose peak is taken apart. */
  readonly at: MemoryKind | number;
  /** Longest list of stacks, operators and tensors; the owners and modules are whole. */
  readonly top: number;
}

export const DOCUMENT_DEFAULTS: DocumentOptions = { at: 'allocated', top: 100 };

export function reportDocument(
  analysis: Analysis,
  options: DocumentOptions = DOCUMENT_DEFAULTS,
): ReportDocument {
  const { trace } = analysis;
  const { header } = trace;
  return {
    schema: REPORT_SCHEMA,
    predicted: header.origin !== 'measured',
    run: {
      trace: analysis.path,
      framework: header.framework,
      run: header.run,
      created: header.created,
      memtracker: header.memtracker,
      origin: header.origin,
      world: header.world,
      rank: header.rank,
      gpus_per_node: header.gpus_per_node,
      gpu: header.gpu.id,
      steps: header.steps,
      checkout: header.checkout,
      argv: header.argv,
      options: header.options,
      source: header.source,
      environment: header.environment,
      identity: identityOf(analysis),
      facts: Object.fromEntries(trace.run),
    },
    integrity: {
      complete: trace.integrity.complete,
      status: trace.integrity.status,
      faults: [...trace.integrity.faults],
      errors: trace.errors.map(({ exception, cause, fatal }) => ({ exception, cause, fatal })),
    },
    replay: {
      alloc_conf: analysis.options.allocConf ?? null,
      gpu: analysis.options.gpu ?? null,
      nccl: analysis.options.ncclVersion ?? null,
      topology: analysis.options.topology ?? null,
      bound: analysis.options.bound ?? 'likely',
    },
    devices: Object.fromEntries(
      analysis.devices.map((device) => [device.name, deviceReport(device, options)]),
    ),
    phases: analysis.devices.flatMap((device) => phaseReports(device)),
    coverage: coverageOf(trace),
  };
}

function deviceReport(device: DeviceAnalysis, options: DocumentOptions): DeviceReport {
  const { timeline, meta, capacity } = device;
  const { trace, peaks, residentLow, residentHigh } = timeline;
  const whole = known(peaks.resident.bytes) ?? peaks.reserved.bytes;
  const totals = totalsOf(timeline);
  const names = new ModuleNames(trace);
  return {
    kind: meta.type,
    index: meta.index,
    device_name: meta.name,
    capacity:
      capacity === null
        ? null
        : {
            name: capacity.name,
            usable_bytes: capacity.usableBytes,
            evidence: capacity.evidence,
            source: capacity.source,
          },
    peak: everyKind((kind) => peakReport(trace, peaks[kind])),
    resident_range: { low: known(residentLow.bytes), high: known(residentHigh.bytes) },
    percent_of_capacity: capacity === null ? null : percent(whole, capacity.usableBytes),
    out_of_memory: outOfMemoryReport(device),
    final: instant(timeline.final),
    evidence: device.evidence,
    external: externalAtPeak(device).map(externalReport),
    at_peak: atPeak(device, options),
    total_allocated: {
      ...totals.all,
      operators: totals.operators
        .slice(0, options.top)
        .map(({ name, bytes, blocks }) => ({ operator: name, bytes, blocks })),
      stacks: totals.stacks.slice(0, options.top).map((share) => stackReport(trace, share)),
    },
    notes: [...device.notes],
    growth: growthOf(timeline).map((growth) => ({
      per: growth.per,
      phase: phaseTitle(growth.phase),
      bytes_each: growth.bytesEach,
      repetitions: growth.repetitions,
      operator: trace.strings[growth.op],
      module: names.of(growth.module),
      frames: framesOf(trace, growth.stack),
    })),
    metrics: runMetrics(device),
  };
}

function outOfMemoryReport(device: DeviceAnalysis): DeviceReport['out_of_memory'] {
  const { outOfMemory, timeline } = device;
  const full = fullDeviceOf(device);
  if (outOfMemory === null || full === undefined) return null;
  return {
    event: outOfMemory.event,
    phase: pathAt(timeline.trace, outOfMemory.event),
    step: stepAt(timeline.trace, outOfMemory.event),
    kind: outOfMemory.kind,
    requested_bytes: outOfMemory.requestedBytes,
    message: outOfMemory.message,
    instant: instant(outOfMemory.instant),
    operator: full.operator,
    module: full.module,
    frames: [...full.frames],
    live: full.owners.map(ownerReport),
    not_in_trace: full.rest,
    external: full.external.map(externalReport),
  };
}

function ownerReport({ owner, pass, bytes, blocks }: OwnerShare) {
  return { owner, pass, title: ownerTitle({ owner, pass }), bytes, blocks };
}

function externalReport(part: ExternalPart): DeviceReport['external'][number] {
  const { name, category, evidence, provenance } = part;
  const sizes = { bytes: known(part.bytes), low: known(part.low), high: known(part.high) };
  return { name, category, ...sizes, evidence, provenance };
}

/** Where resident has its peak; where it is not known, at the peak of reserved. */
export function externalAtPeak({ timeline, externalAt }: DeviceAnalysis) {
  const { resident, reserved } = timeline.peaks;
  return externalAt(Number.isNaN(resident.bytes) ? reserved.event : resident.event);
}

function atPeak(device: DeviceAnalysis, options: DocumentOptions): DeviceReport['at_peak'] {
  const { timeline } = device;
  const { trace } = timeline;
  const { at, top } = options;
  const attribution: Attribution =
    typeof at === 'number' ? device.attributionAt(at) : device.attributionAtPeak(at);
  return {
    kind: typeof at === 'number' ? 'event' : at,
    event: attribution.event,
    phase: pathAt(trace, attribution.event),
    requested: attribution.requested,
    allocated: attribution.allocated,
    owners: attribution.owners.map(ownerReport),
    not_in_trace: attribution.rest,
    modules: attribution.modules.map(moduleReport),
    repeated_modules: attribution.repeatedModules.map(moduleReport),
    operators: attribution.operators
      .slice(0, top)
      .map(({ name, bytes, blocks }) => ({ operator: name, bytes, blocks })),
    stacks: attribution.stacks.slice(0, top).map((share) => stackReport(trace, share)),
    origins: attribution.origins.map(({ phase, bytes, blocks }) => ({
      phase: titleOrNull(trace.phases[phase]),
      bytes,
      blocks,
    })),
    tensors: tensorRows(timeline, attribution, device.lifetimes(), top).map((row) => ({
      storage: row.storage,
      event: row.event,
      bytes: row.bytes,
      block_bytes: row.blockBytes,
      dtype: row.dtype,
      layout: row.layout,
      shape: row.shape === null ? null : [...row.shape],
      owner: row.owner,
      owner_name: row.ownerName,
      operator: row.op,
      module: row.module,
      pass: row.pass,
      stream: row.stream,
      phase_born: titleOrNull(row.born),
      phase_died: titleOrNull(row.died),
      died_at_event: row.diedAtEvent,
      call_site: frameReport(callSite(trace, row.stack)),
    })),
    tensor_count: attribution.blocks.length,
  };
}

function phaseReports(device: DeviceAnalysis): PhaseReport[] {
  const { trace } = device.timeline;
  return device.timeline.phases.map(({ phase, before, after, peaks }) => ({
    device: device.name,
    path: phase.path,
    name: phase.name,
    occurrence: phase.occurrence,
    depth: phase.depth,
    labels: { ...phase.labels },
    step: numberOrNull(labelOf(trace, phase.id, 'step')),
    micro_batch: numberOrNull(labelOf(trace, phase.id, 'micro_batch')),
    begin_event: phase.beginEvent,
    end_event: phase.endEvent,
    closed: phase.closed,
    before: instant(before),
    after: instant(after),
    peak: everyKind((kind) => {
      const bytes = known(peaks[kind].bytes);
      return { bytes, event: bytes === null ? null : peaks[kind].event };
    }),
  }));
}

/** Repeated notices of one thing are one row with a count. */
function coverageOf(trace: Trace): ReportDocument['coverage'] {
  const rows = new Map<string, ReportDocument['coverage'][number]>();
  const names = new ModuleNames(trace);
  for (const item of trace.uncovered) {
    const key = JSON.stringify([item.kind, item.name, item.detail, item.assumption]);
    const row = rows.get(key);
    if (row !== undefined) {
      row.count++;
      continue;
    }
    rows.set(key, {
      kind: item.kind,
      name: item.name,
      detail: item.detail,
      assumption: item.assumption,
      bytes: item.bytes < 0 ? null : item.bytes,
      count: 1,
      module: names.of(item.module),
      call_site: frameReport(callSite(trace, item.stack)),
    });
  }
  return [...rows.values()];
}

function peakReport(trace: Trace, peak: Peak): DeviceReport['peak']['allocated'] {
  const bytes = known(peak.bytes);
  if (bytes === null) return { bytes, phase: null, step: null, event: null };
  return {
    bytes,
    phase: pathAt(trace, peak.event),
    step: stepAt(trace, peak.event),
    event: peak.event,
  };
}

function moduleReport(share: ModuleShare): DeviceReport['at_peak']['modules'][number] {
  return {
    name: share.name,
    class: share.className,
    count: share.count,
    own: { ...share.own },
    with_children: { ...share.withChildren },
    by_pass: { ...share.byPass },
  };
}

function stackReport(
  trace: Trace,
  { stack, op, bytes, blocks }: StackShare,
): DeviceReport['at_peak']['stacks'][number] {
  return { operator: trace.strings[op], frames: framesOf(trace, stack), bytes, blocks } satisfies {
    operator: string;
    frames: Frame[];
  } & Share;
}

function frameReport(frame: Frame | undefined): Frame | null {
  return frame === undefined
    ? null
    : { file: frame.file, line: frame.line, function: frame.function };
}

function everyKind<T>(of: (kind: MemoryKind) => T): Record<MemoryKind, T> {
  return Object.fromEntries(MEMORY_KINDS.map((kind) => [kind, of(kind)])) as Record<MemoryKind, T>;
}

function instant(values: Instant): Record<MemoryKind, number | null> {
  return everyKind((kind) => known(values[kind]));
}

function known(bytes: number): number | null {
  return Number.isNaN(bytes) ? null : bytes;
}

function percent(part: number, whole: number): number {
  return Math.round((1e4 * part) / whole) / 100;
}

function pathAt(trace: Trace, event: number): string | null {
  return titleOrNull(phaseAt(trace, event));
}

function titleOrNull(phase: PhaseMeta | undefined): string | null {
  return phase === undefined ? null : phaseTitle(phase);
}

function stepAt(trace: Trace, event: number): number | null {
  return numberOrNull(labelOf(trace, trace.events.phase[event], 'step'));
}

function numberOrNull(value: unknown): number | null {
  return typeof value === 'number' ? value : null;
}
