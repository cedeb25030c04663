// A fit as JSON, as Markdown for a pull request, and as JUnit XML for CI.

import { formatGiB } from '../../base/bytes.ts';
import type { FitOutcome } from '../../fit/run.ts';
import { junitXml, type TestCase } from '../junit.ts';
import { type FitReport, overallVerdict, VERDICT_WORDS } from './fit_report.ts';

/** NaN (unknown) becomes null: JSON has no NaN, and unknown is not zero. */
function known(bytes: number): number | null {
  return Number.isFinite(bytes) ? bytes : null;
}

export function fitJson(report: FitReport): unknown {
  return {
    schema: 'memtracker.fit/1',
    verdict: overallVerdict(report),
    variations: report.outcomes.map(outcomeJson),
    search:
      report.search === null
        ? null
        : {
            goal: report.search.goal,
            key: report.search.key,
            best: report.search.result.best,
            probes: report.search.result.probes,
          },
    suggestions: report.suggestions.map(({ title, change, outcome, won }) => ({
      title,
      change,
      won_bytes: known(won),
      ...outcomeJson(outcome),
    })),
    traced: report.traced,
    seconds: report.seconds,
  };
}

function outcomeJson(outcome: FitOutcome) {
  const { judgement, variation } = outcome;
  return {
    label: outcome.label,
    setting: variation.setting,
    scenario: variation.scenario,
    verdict: judgement.verdict,
    reasons: judgement.reasons,
    missing: judgement.missing,
    assumptions: judgement.assumptions,
    capacity_bytes: outcome.capacity,
    margin_bytes: outcome.margin,
    worst_role: judgement.worst?.role.label ?? null,
    roles: outcome.roles.map((role) => ({
      role: role.role.label,
      representative_rank: role.role.representative,
      ranks: role.role.ranks,
      stage: role.role.stage,
      trace: role.trace,
      peak: {
        allocated: role.allocatedPeak,
        reserved: role.reservedPeak,
        resident_low: known(role.residentPeak.low),
        resident: known(role.residentPeak.likely),
        resident_high: known(role.residentPeak.high),
        phase: role.peakPhase,
        resident_at_upper_bound: known(role.upperPeak),
      },
      live_micro_batches: role.liveMicroBatches,
      allocator_retries: role.retries,
      out_of_memory: role.low,
      out_of_memory_at_upper_bound: role.high,
    })),
  };
}

export function fitMarkdown(report: FitReport): string {
  const head = '| variation | verdict | worst role | resident GiB | capacity GiB | why |';
  const rows = report.outcomes.map(({ label, judgement, capacity }) => {
    const resident = judgement.worst?.residentPeak.likely ?? Number.NaN;
    const cells = [
      label,
      VERDICT_WORDS[judgement.verdict],
      judgement.worst?.role.label ?? '–',
      Number.isFinite(resident) ? formatGiB(resident) : 'unknown',
      formatGiB(capacity),
      judgement.reasons[0]?.split('\n')[0] ?? '',
    ];
    return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  });
  const parts = [`### ${report.title}`, '', head, '|---|---|---|---:|---:|---|', ...rows];
  if (report.search !== null) {
    const { goal, key, result } = report.search;
    parts.push('', `${goal} \`${key}\`: **${result.best ?? 'none fits'}**`);
  }
  for (const { title, outcome } of report.suggestions) {
    parts.push(`- ${title}: ${VERDICT_WORDS[outcome.judgement.verdict]}`);
  }
  return `${parts.join('\n')}\n`;
}

/** One test case a variation; what does not fit is a failure, what is unproven an error. */
export function fitJunit(report: FitReport): string {
  const kinds = { does_not_fit: 'failure', unproven: 'error' } as const;
  const cases = report.outcomes.map(({ label, judgement: { verdict, reasons } }): TestCase => {
    const suite = report.title;
    if (verdict === 'fits') return { suite, name: label };
    return { suite, name: label, outcome: { kind: kinds[verdict], message: reasons.join('\n') } };
  });
  return junitXml('memtracker fit', cases);
}
