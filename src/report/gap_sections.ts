// What an estimate beside a measurement says to a person: each kind of peak, phase by phase, then where the two part first.

import { formatBytes } from '../base/bytes.ts';
import type { Gap, MeasuredComparison, PhaseGap } from '../compare/gap.ts';
import { MEMORY_KINDS } from '../timeline/timeline.ts';
import {
  plain,
  type ReportTable,
  type Section,
  type Sentence,
  strong,
  warning,
} from './section.ts';
import { formatDelta, formatKnown } from './words.ts';

const STACK_LINES = 6;

export function gapSections(comparison: MeasuredComparison): Section[] {
  const { estimate, measured, run, phases, firstParting, tolerance } = comparison;
  const { allocated } = run.peaks;
  const censored = run.coverage === 'censored';
  const sentences: Sentence[] = [
    strong(
      censored
        ? 'The measured run ended out of memory: its figures are lower bounds, the run is not scored'
        : `Allocated peak: estimate ${formatKnown(allocated.estimate)}, measured ${formatKnown(allocated.measured)}, gap ${gapText(allocated)}`,
    ),
    plain(`Estimate: ${estimate.path}`),
    plain(`Measured (${measured.measured?.format}): ${measured.path}`),
    plain('Gap = estimate − measured'),
  ];
  const sections: Section[] = [
    {
      sentences,
      tables: [
        gapTable(
          'Memory',
          MEMORY_KINDS.map((kind) => [kind, run.peaks[kind]] as const),
          (_, coverage) => coverage,
          () => run.coverage,
        ),
      ],
    },
  ];
  const matched = phases.filter((phase) => phase.peaks !== null);
  sections.push(
    matched.length === 0
      ? {
          sentences: [
            warning(
              'No phase has the same name and labels on both sides; only the run is compared.',
            ),
          ],
          tables: [],
        }
      : {
          title: 'Phases: allocated peak',
          sentences: unmatched(phases),
          tables: [phaseTable(phases)],
        },
  );
  if (firstParting !== null) {
    const { phase, sites } = firstParting;
    sections.push({
      title: `They part first in ${phase.path}`,
      sentences: [
        plain(
          `by ${phase.peaks === null ? 'unknown' : gapText(phase.peaks.allocated)} of allocated (more than ${100 * tolerance} %)`,
        ),
        ...sites.flatMap((site) => [
          strong(
            `${site.name}: estimate ${formatBytes(site.gap.estimate)}, measured ${formatBytes(site.gap.measured)}`,
          ),
          plain(`  estimate: ${stackText(site.estimateStack)}`),
          plain(`  measured: ${stackText(site.measuredStack)}`),
        ]),
      ],
      tables: [],
    });
  } else if (matched.some(({ coverage }) => coverage === 'scored')) {
    sections.push({
      sentences: [plain(`No phase parts by more than ${100 * tolerance} % of allocated.`)],
      tables: [],
    });
  }
  for (const note of measured.measured?.notes ?? []) {
    sections.push({ sentences: [warning(note)], tables: [] });
  }
  return sections;
}

function phaseTable(phases: readonly PhaseGap[]): ReportTable {
  return gapTable(
    'Phase',
    phases.map(({ path, peaks }) => [path, peaks?.allocated] as const),
    (index) => phases[index].coverage.replace('_', ' '),
  );
}

function gapTable(
  head: string,
  rows: readonly (readonly [string, Gap | undefined])[],
  coverage: (index: number, fallback: string) => string,
  fallback: () => string = () => '',
): ReportTable {
  return {
    columns: [
      { head, flexible: true },
      { head: 'Estimate', align: 'right' },
      { head: 'Measured', align: 'right' },
      { head: 'Gap', align: 'right' },
      { head: '%', align: 'right' },
      { head: 'Coverage' },
    ],
    rows: rows.map(([name, gap], index) => {
      const covered = coverage(index, fallback());
      if (gap === undefined) return [name, '–', '–', '–', '–', covered];
      const scored = covered === 'scored' && !Number.isNaN(gap.gap);
      return [
        name,
        formatKnown(gap.estimate),
        `${covered === 'censored' ? '≥ ' : ''}${formatKnown(gap.measured)}`,
        scored ? formatDelta(gap.gap) : '–',
        scored && !Number.isNaN(gap.percent) ? gap.percent.toFixed(2) : '–',
        covered,
      ];
    }),
  };
}

function unmatched(phases: readonly PhaseGap[]): Sentence[] {
  const count = (coverage: PhaseGap['coverage']): number =>
    phases.filter((phase) => phase.coverage === coverage).length;
  const sentences: Sentence[] = [];
  if (count('censored') > 0) {
    sentences.push(
      warning(`${count('censored')} phases are censored by an out-of-memory error and not scored`),
    );
  }
  return sentences;
}

function gapText(gap: Gap): string {
  if (Number.isNaN(gap.gap)) return 'unknown';
  const percent = Number.isNaN(gap.percent) ? '' : ` (${gap.percent.toFixed(2)} %)`;
  return `${formatDelta(gap.gap)}${percent}`;
}

function stackText(frames: readonly string[]): string {
  if (frames.length === 0) return '(nothing there)';
  return frames.slice(0, STACK_LINES).join(' < ');
}
