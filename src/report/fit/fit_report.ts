// What a fit answered, in one shape for every form (text, JSON, Markdown, JUnit).

import type { FitOutcome } from '../../fit/run.ts';
import type { SearchResult } from '../../fit/search.ts';
import type { Suggestion } from '../../fit/suggestions.ts';
import type { Verdict } from '../../fit/verdict.ts';

export interface FitSearchReport {
  readonly goal: 'maximize' | 'minimize';
  readonly key: string;
  readonly result: SearchResult;
}

export interface FitReport {
  readonly title: string;
  readonly outcomes: readonly FitOutcome[];
  readonly search: FitSearchReport | null;
  readonly suggestions: readonly Suggestion[];
  /** Traces made by this run; the rest came from the cache. */
  readonly traced: number;
  readonly seconds: number;
}

/** Fits, else the worst verdict: does_not_fit before unproven. */
export function overallVerdict(report: FitReport): Verdict {
  const verdicts = report.outcomes.map((outcome) => outcome.judgement.verdict);
  if (verdicts.includes('does_not_fit')) return 'does_not_fit';
  return verdicts.length > 0 && verdicts.every((verdict) => verdict === 'fits')
    ? 'fits'
    : 'unproven';
}

export const VERDICT_WORDS: Readonly<Record<Verdict, string>> = {
  fits: 'fits',
  does_not_fit: 'does not fit',
  unproven: 'unproven',
};
