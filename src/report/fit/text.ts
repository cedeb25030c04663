// A fit for a terminal: one line a variation, then why, then per stage, then the search and the suggestions.

import { formatBytes, formatGiB } from '../../base/bytes.ts';
import type { FitOutcome } from '../../fit/run.ts';
import type { Suggestion } from '../../fit/suggestions.ts';
import type { Failure, RoleEvidence, Verdict } from '../../fit/verdict.ts';
import { cutMiddle, type TableColumn, tableLines } from '../table.ts';
import { formatDelta, formatPercent } from '../words.ts';
import { type FitReport, VERDICT_WORDS } from './fit_report.ts';

/** How verdicts are coloured; the identity where there is no terminal. The word says the same. */
export type VerdictPaint = Readonly<Record<'green' | 'red' | 'yellow', (text: string) => string>>;

/** Columns after those of the matrix. `Needs` is resident without a limit, `Free` what the upper replay leaves. */
const VERDICT_COLUMNS: readonly TableColumn[] = [
  { head: 'Verdict' },
  { head: 'Worst role' },
  { head: 'Needs GiB', align: 'right' },
  { head: 'Capacity', align: 'right' },
  { head: 'Free GiB', align: 'right' },
  { head: 'Retries', align: 'right' },
];

const ROLE_COLUMNS: readonly TableColumn[] = [
  { head: 'Role' },
  { head: 'Ranks', align: 'right' },
  { head: 'Allocated', align: 'right' },
  { head: 'Reserved', align: 'right' },
  { head: 'Resident low–high', align: 'right' },
  { head: 'Live mb', align: 'right' },
  { head: 'Peak phase', flexible: true },
];

export function fitText(report: FitReport, colors: VerdictPaint, width: number): string {
  const lines: string[] = [report.title, ''];
  const painted = (verdict: Verdict, text: string) =>
    ({ fits: colors.green, does_not_fit: colors.red, unproven: colors.yellow })[verdict](text);
  const keys = settingKeys(report.outcomes);
  const columns = [...keys.map((key) => ({ head: shortKey(key) })), ...VERDICT_COLUMNS];
  const rows = report.outcomes.map((outcome) => [
    ...keys.map((key) => settingValue(outcome, key)),
    ...verdictCells(outcome),
  ]);
  const table = tableLines(columns, rows, width);
  lines.push(table[0], table[1]);
  report.outcomes.forEach((outcome, i) => {
    lines.push(painted(outcome.judgement.verdict, table[i + 2]));
  });
  for (const outcome of report.outcomes) lines.push(...outcomeLines(outcome, width));
  if (report.search !== null) {
    const { goal, key, result } = report.search;
    lines.push('');
    for (const probe of result.probes) {
      lines.push(
        `  ${key} = ${probe.value}: ${painted(probe.verdict, VERDICT_WORDS[probe.verdict])}`,
      );
    }
    lines.push(
      result.best === null
        ? `no value of ${key} in the range fits`
        : `${goal === 'maximize' ? 'largest' : 'smallest'} ${key} that fits: ${result.best}`,
    );
  }
  if (report.suggestions.length > 0) lines.push('', ...suggestionLines(report.suggestions));
  lines.push(
    '',
    `${report.traced} traced, the rest from the cache; ${report.seconds.toFixed(1)} s`,
  );
  return lines.join('\n');
}

/** What the matrix and the scenarios vary, in their order. */
function settingKeys(outcomes: readonly FitOutcome[]): string[] {
  const keys = new Set(outcomes.flatMap(({ variation }) => Object.keys(variation.setting)));
  if (new Set(outcomes.map(({ variation }) => variation.scenario)).size > 1) keys.add('scenario');
  return [...keys];
}

function settingValue({ variation }: FitOutcome, key: string): string {
  return key === 'scenario' ? variation.scenario : String(variation.setting[key] ?? 'unset');
}

/** `training.num_tokens_per_microbatch_per_dp_rank` -> `num_tokens…dp_rank`. */
function shortKey(key: string): string {
  const name =
    key
      .replace(/^-+|:$/g, '')
      .split('.')
      .at(-1) ?? key;
  return cutMiddle(name, 18);
}

function verdictCells(outcome: FitOutcome): string[] {
  const { worst, verdict } = outcome.judgement;
  const retries = Math.max(0, ...outcome.roles.map((role) => role.retries));
  return [
    VERDICT_WORDS[verdict],
    worst === null ? '–' : worst.role.label,
    gib(worst?.residentPeak.likely ?? Number.NaN),
    gib(outcome.capacity),
    freeGib(outcome),
    retries === 0 ? '' : String(retries),
  ];
}

/** Below the margin, at the upper bound, in the worst role; what is missing where it does not fit. */
function freeGib({ capacity, margin, roles, judgement: { worst } }: FitOutcome): string {
  if (worst?.low) return gib(-worst.low.shortBytes);
  return gib(Math.min(...roles.map((role) => capacity - margin - role.upperPeak)));
}

function gib(bytes: number): string {
  return Number.isFinite(bytes) ? formatGiB(bytes) : 'unknown';
}

function outcomeLines(outcome: FitOutcome, width: number): string[] {
  const { judgement, roles, label } = outcome;
  const lines = ['', `${label}: ${VERDICT_WORDS[judgement.verdict]}`];
  for (const reason of judgement.reasons.slice(0, 6)) lines.push(`  ${reason}`);
  if (judgement.reasons.length > 6)
    lines.push(`  and ${judgement.reasons.length - 6} more reasons`);
  const failure = roles.find((role) => role.low !== null)?.low;
  if (failure) lines.push(...failureLines(failure));
  if (roles.length > 1) {
    lines.push(
      ...tableLines(ROLE_COLUMNS, roles.map(roleRow), width - 2).map((line) => `  ${line}`),
    );
  }
  for (const assumption of judgement.assumptions.slice(0, 8))
    lines.push(`  assumed: ${assumption}`);
  const retries = Math.max(0, ...roles.map((role) => role.retries));
  if (retries > 0) {
    lines.push(
      `  the allocator empties its cache ${retries} times on the way: slow; 0 is what you want`,
    );
  }
  return lines;
}

function failureLines(failure: Failure): string[] {
  const where =
    failure.module === '' ? failure.phase : `${failure.phase}, module ${failure.module}`;
  return [
    `  asked for ${formatBytes(failure.requestedBytes)} in ${where}, ${formatBytes(failure.shortBytes)} more than there was`,
    ...failure.stack.slice(0, 4).map((frame) => `    ${frame}`),
  ];
}

function roleRow(role: RoleEvidence): string[] {
  return [
    role.role.label,
    role.role.ranks.toLocaleString('en-US'),
    gib(role.allocatedPeak),
    gib(role.reservedPeak),
    `${gib(role.residentPeak.low)}–${gib(role.residentPeak.high)}`,
    role.liveMicroBatches === null ? '' : String(role.liveMicroBatches),
    role.peakPhase,
  ];
}

function suggestionLines(suggestions: readonly Suggestion[]): string[] {
  return [
    'single changes, each traced:',
    ...suggestions.map(({ title, change, outcome, won }) => {
      const set = Object.entries(change)
        .map(([key, value]) => `${key}=${value ?? 'unset'}`)
        .join(' ');
      const resident = outcome.judgement.worst?.residentPeak.likely ?? Number.NaN;
      const effect = Number.isFinite(won)
        ? `${formatDelta(-won)}, ${formatPercent(resident, outcome.capacity)} of the device`
        : 'could not be traced';
      return `  ${VERDICT_WORDS[outcome.judgement.verdict].padEnd(12)}  ${title} (${set}): ${effect}`;
    }),
  ];
}
