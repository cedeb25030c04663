// An estimate beside a measurement of the same job: for every phase and kind of memory the gap = estimate − measured, and the first
// phase in which the two part. Phases that ended out of memory are censored: the job wanted at least what stands there, so they
// are shown and never scored.

import type { Analysis, DeviceAnalysis, MeasuredFacts } from '../attribution/analysis.ts';
import { type Frame, frameText, isLibraryFrame } from '../attribution/frames.ts';
import { UserError } from '../base/errors.ts';
import { MEMORY_KINDS, type MemoryKind, type PhaseSpan } from '../timeline/timeline.ts';
import { framesOf } from '../trace/trace.ts';
import { type Causes, causesOf, type Side } from './change.ts';
import { matchPhases } from './phase_match.ts';

/** Bytes; NaN where a side does not know. `percent` is of the measured value. */
export interface Gap {
  readonly estimate: number;
  readonly measured: number;
  readonly gap: number;
  readonly percent: number;
}

export type Gaps = { readonly [K in MemoryKind]: Gap };

export type PhaseCoverage =
  /** On both sides and whole: scored. */
  | 'scored'
  /** The measured phase ran out of memory: its figures are lower bounds. */
  | 'censored'
  | 'estimate_only'
  | 'measured_only';

export interface PhaseGap {
  readonly path: string;
  readonly coverage: PhaseCoverage;
  readonly estimate: PhaseSpan | null;
  readonly measured: PhaseSpan | null;
  /** Peaks inside the phase; null unless both sides have it. */
  readonly peaks: Gaps | null;
  /** What the phase added: after − before, allocated. */
  readonly growth: Gap | null;
}

/**
 * One call site that holds different amounts, with the largest stack through it on each side. The operator is not part of it:
 * a measured stack names it only when C++ frames were recorded.
 */
export interface PartingSite {
  readonly name: string;
  readonly gap: Gap;
  /** Frames innermost first; empty where the side has nothing there. */
  readonly estimateStack: readonly string[];
  readonly measuredStack: readonly string[];
}

export interface FirstParting {
  readonly phase: PhaseGap;
  /** What changed between the two at the phase's allocated peaks (`a` is the estimate). */
  readonly causes: Causes;
  readonly sites: readonly PartingSite[];
}

export interface MeasuredComparison {
  readonly estimate: Analysis;
  readonly measured: Analysis;
  readonly estimateDevice: DeviceAnalysis;
  readonly measuredDevice: DeviceAnalysis;
  /** Of the whole run; `censored` when the measured run ended out of memory. */
  readonly run: { readonly coverage: 'scored' | 'censored'; readonly peaks: Gaps };
  readonly phases: readonly PhaseGap[];
  /** Null when they stay together within the tolerance, or nothing can be scored. */
  readonly firstParting: FirstParting | null;
  readonly tolerance: number;
}

export interface GapOptions {
  /** A phase parts when its allocated peaks differ by more than this part of the measured one. */
  readonly tolerance?: number;
}

/** 1 %: the bar that published estimators of allocated memory hold in their own tests. */
export const DEFAULT_TOLERANCE = 0.01;

/** Call sites of the first parting that are shown with their stacks. */
const PARTING_SITES = 5;

/** @throws UserError `COMPARE_SIDES` when the first is no estimate or the second no measurement. */
export function compareWithMeasurement(
  estimate: Analysis,
  measured: Analysis,
  options: GapOptions = {},
): MeasuredComparison {
  const { tolerance = DEFAULT_TOLERANCE } = options;
  if (measured.measured === undefined || estimate.measured !== undefined) {
    throw new UserError(
      'COMPARE_SIDES',
      'give the estimate first and the measured run second: memtracker compare estimate.mtrace snapshot.pickle',
    );
  }
  refuseToScoreCalibration(estimate, measured.measured);
  const { censored } = measured.measured;
  const estimateDevice = mainGpu(estimate);
  const measuredDevice = mainGpu(measured);
  const phases = matchPhases(
    estimateDevice.timeline.phases,
    estimateDevice.timeline.trace,
    measuredDevice.timeline.phases,
    measuredDevice.timeline.trace,
  ).map(({ a, b }): PhaseGap => {
    const both = a !== null && b !== null;
    return {
      path: (a ?? b)?.phase.path ?? '',
      coverage: !both
        ? a === null
          ? 'measured_only'
          : 'estimate_only'
        : censored.has(b.phase.id)
          ? 'censored'
          : 'scored',
      estimate: a,
      measured: b,
      peaks: both ? gaps(a, b) : null,
      growth: both
        ? gap(a.after.allocated - a.before.allocated, b.after.allocated - b.before.allocated)
        : null,
    };
  });
  return {
    estimate,
    measured,
    estimateDevice,
    measuredDevice,
    run: {
      coverage: censored.size > 0 || measuredDevice.outOfMemory !== null ? 'censored' : 'scored',
      peaks: gaps(estimateDevice.timeline, measuredDevice.timeline),
    },
    phases,
    firstParting: firstParting(phases, estimateDevice, measuredDevice, tolerance),
    tolerance,
  };
}

/**
 * A run that calibrates cannot validate, and neither can another run of the same configuration.
 * @throws UserError `COMPARE_CALIBRATION`.
 */
function refuseToScoreCalibration({ calibration }: Analysis, measured: MeasuredFacts): void {
  if (measured.purpose === 'calibration') {
    throw new UserError(
      'COMPARE_CALIBRATION',
      'the measured run was captured for calibration; an estimate is scored on runs captured with --purpose validation',
    );
  }
  const { configuration } = measured;
  if (configuration !== undefined && calibration?.configurations.includes(configuration) === true) {
    throw new UserError(
      'COMPARE_CALIBRATION',
      `the calibration profile ${calibration.name} was measured on this very configuration; score it on another one, or leave --profile out`,
    );
  }
}

/** Phases are entered outermost first: of those that part, the one whose own inner phases do not is where it happens. */
function firstParting(
  phases: readonly PhaseGap[],
  estimate: DeviceAnalysis,
  measured: DeviceAnalysis,
  tolerance: number,
): FirstParting | null {
  const parts = phases.filter(
    ({ coverage, peaks }) =>
      coverage === 'scored' &&
      peaks !== null &&
      Math.abs(peaks.allocated.gap) > tolerance * Math.max(1, peaks.allocated.measured),
  );
  const first = parts[0];
  if (first === undefined) return null;
  let phase = first;
  for (;;) {
    const inner = parts.find(
      (candidate) => candidate.measured?.phase.parent === phase.measured?.phase.id,
    );
    if (inner === undefined) break;
    phase = inner;
  }
  if (phase.estimate === null || phase.measured === null) return null;
  const a = {
    trace: estimate.timeline.trace,
    attribution: estimate.attributionAt(phase.estimate.peaks.allocated.event),
  };
  const b = {
    trace: measured.timeline.trace,
    attribution: measured.attributionAt(phase.measured.peaks.allocated.event),
  };
  return { phase, causes: causesOf(a, b), sites: partingSites(a, b) };
}

function partingSites(a: Side, b: Side): PartingSite[] {
  const sites = new Map<string, { bytes: [number, number]; stacks: [string[], string[]] }>();
  for (const [side, { trace, attribution }] of [a, b].entries()) {
    for (const { stack, bytes } of attribution.stacks) {
      const frames = framesOf(trace, stack).filter((frame) => !isOwnFrame(frame));
      const name = placeOf(frames);
      const site = sites.get(name) ?? { bytes: [0, 0], stacks: [[], []] };
      site.bytes[side] += bytes;
      // Shares are sorted: the first stack is the largest.
      if (site.stacks[side].length === 0) site.stacks[side] = frames.map(frameText);
      sites.set(name, site);
    }
  }
  return [...sites]
    .map(([name, { bytes, stacks }]) => ({
      name,
      gap: gap(bytes[0], bytes[1]),
      estimateStack: stacks[0],
      measuredStack: stacks[1],
    }))
    .filter((site) => site.gap.gap !== 0)
    .sort((x, y) => Math.abs(y.gap.gap) - Math.abs(x.gap.gap))
    .slice(0, PARTING_SITES);
}

/** Frames that only one side can have: memtracker's own, around and inside the job. */
function isOwnFrame(frame: Frame): boolean {
  return /(^|\/)(memtracker_sidecar|adapters)\//.test(frame.file);
}

/** The innermost frame of the job's own code, without its line, which moves when somebody edits the file above it. */
function placeOf(frames: readonly Frame[]): string {
  const site = frames.find((frame) => !isLibraryFrame(frame)) ?? frames[0];
  if (site === undefined) return '(no Python stack: the autograd engine or a native thread)';
  return `${site.file.split('/').slice(-2).join('/')} ${functionName(site)}`;
}

/** Python 3.11 names a function by its qualified name, older ones (and torch's recorder) by its own. */
function functionName({ function: name }: Frame): string {
  return name.split('.').at(-1) ?? name;
}

function mainGpu(analysis: Analysis): DeviceAnalysis {
  const device = analysis.devices.find(({ meta }) => meta.type === 'cuda');
  if (device === undefined) {
    throw new UserError('COMPARE_SIDES', `${analysis.path} has no memory on a GPU`);
  }
  return device;
}

function gaps(a: Pick<PhaseSpan, 'peaks'>, b: Pick<PhaseSpan, 'peaks'>): Gaps {
  return Object.fromEntries(
    MEMORY_KINDS.map((kind) => [kind, gap(a.peaks[kind].bytes, b.peaks[kind].bytes)]),
  ) as Gaps;
}

function gap(estimate: number, measured: number): Gap {
  const difference = estimate - measured;
  return {
    estimate,
    measured,
    gap: difference,
    percent: measured === 0 ? Number.NaN : (100 * difference) / measured,
  };
}
