// Two runs beside each other: each kind of peak, phase by phase, and what changed where the peaks stand. Each side is taken at
// its own peak: the two need not be the same instant of the job.

import type { Analysis, DeviceAnalysis } from '../attribution/analysis.ts';
import { MEMORY_KINDS, type MemoryKind, type PhaseSpan } from '../timeline/timeline.ts';
import { type Causes, causesOf } from './change.ts';
import { pairDevices } from './device_pair.ts';
import { matchPhases } from './phase_match.ts';

/** A size on both sides; NaN where it is not known. */
export interface Difference {
  readonly a: number;
  readonly b: number;
  readonly delta: number;
}

export type Differences = { readonly [K in MemoryKind]: Difference };

export interface PhaseComparison {
  readonly a: PhaseSpan | null;
  readonly b: PhaseSpan | null;
  /** Null where one side has no such phase. */
  readonly peaks: Differences | null;
  /** What changed at the phase's allocated peaks; only for the phases that changed most. */
  readonly causes: Causes | null;
}

export interface DeviceComparison {
  readonly name: string;
  readonly a: DeviceAnalysis;
  readonly b: DeviceAnalysis;
  readonly peaks: Differences;
  readonly causes: Causes;
  readonly phases: readonly PhaseComparison[];
}

export interface Comparison {
  readonly a: Analysis;
  readonly b: Analysis;
  readonly devices: readonly DeviceComparison[];
  /** Devices that only one run used. */
  readonly onlyInA: readonly string[];
  readonly onlyInB: readonly string[];
}

/** Phases for which causes are looked up: each costs a scan of both traces. */
const EXPLAINED_PHASES = 8;

export function compareRuns(a: Analysis, b: Analysis): Comparison {
  const pairs = pairDevices(a.devices, b.devices);
  const left = (devices: readonly DeviceAnalysis[]) =>
    devices.filter((device) => !pairs.flat().includes(device)).map(({ name }) => name);
  return {
    a,
    b,
    devices: pairs.map(([first, second]) => compareDevices(first, second)),
    onlyInA: left(a.devices),
    onlyInB: left(b.devices),
  };
}

export function compareDevices(a: DeviceAnalysis, b: DeviceAnalysis): DeviceComparison {
  const pairs = matchPhases(
    a.timeline.phases,
    a.timeline.trace,
    b.timeline.phases,
    b.timeline.trace,
  ).map((pair) => ({
    ...pair,
    peaks: pair.a === null || pair.b === null ? null : differences(pair.a, pair.b),
  }));
  const moved = pairs
    .filter(({ peaks }) => peaks !== null && peaks.allocated.delta !== 0)
    .sort(
      (x, y) => Math.abs(y.peaks?.allocated.delta ?? 0) - Math.abs(x.peaks?.allocated.delta ?? 0),
    );
  const explained = new Set(moved.slice(0, EXPLAINED_PHASES));
  return {
    name: a.name,
    a,
    b,
    peaks: differences(a.timeline, b.timeline),
    causes: causesAt(a, a.timeline.peaks.allocated.event, b, b.timeline.peaks.allocated.event),
    phases: pairs.map((pair) => ({
      ...pair,
      causes:
        explained.has(pair) && pair.a !== null && pair.b !== null
          ? causesAt(a, pair.a.peaks.allocated.event, b, pair.b.peaks.allocated.event)
          : null,
    })),
  };
}

function causesAt(a: DeviceAnalysis, atA: number, b: DeviceAnalysis, atB: number): Causes {
  return causesOf(
    { trace: a.timeline.trace, attribution: a.attributionAt(atA) },
    { trace: b.timeline.trace, attribution: b.attributionAt(atB) },
  );
}

function differences(a: Pick<PhaseSpan, 'peaks'>, b: Pick<PhaseSpan, 'peaks'>): Differences {
  return Object.fromEntries(
    MEMORY_KINDS.map((kind) => {
      const [before, after] = [a.peaks[kind].bytes, b.peaks[kind].bytes];
      return [kind, { a: before, b: after, delta: after - before }];
    }),
  ) as Differences;
}
