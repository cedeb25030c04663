// `compare --json` of an estimate beside a measurement. Bytes as whole numbers, null where a side does not know.

import type { Gap, Gaps, MeasuredComparison } from '../compare/gap.ts';
import { MEMORY_KINDS } from '../timeline/timeline.ts';

export function gapDocument(comparison: MeasuredComparison): unknown {
  const { estimate, measured, run, phases, firstParting, tolerance } = comparison;
  return {
    schema: 'memtracker-gap/1',
    estimate: estimate.path,
    measured: measured.path,
    format: measured.measured?.format,
    tolerance,
    run: { coverage: run.coverage, peaks: gapsOf(run.peaks) },
    phases: phases.map(({ path, coverage, peaks, growth }) => ({
      path,
      coverage,
      peaks: peaks === null ? null : gapsOf(peaks),
      growth: growth === null ? null : gapOf(growth),
    })),
    first_parting:
      firstParting === null
        ? null
        : {
            phase: firstParting.phase.path,
            sites: firstParting.sites.map((site) => ({
              name: site.name,
              ...gapOf(site.gap),
              estimate_stack: site.estimateStack,
              measured_stack: site.measuredStack,
            })),
          },
    notes: measured.measured?.notes ?? [],
  };
}

function gapsOf(gaps: Gaps): Record<string, unknown> {
  return Object.fromEntries(MEMORY_KINDS.map((kind) => [kind, gapOf(gaps[kind])]));
}

function gapOf({ estimate, measured, gap, percent }: Gap): Record<string, number | null> {
  return {
    estimate: known(estimate),
    measured: known(measured),
    gap: known(gap),
    percent: known(percent),
  };
}

function known(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}
