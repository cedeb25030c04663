// The table and its summary, as Markdown. Every case is a row, misses and failures too.

import type { CaseResult, Comparison } from './case_result.ts';
import type { Quantity, Truth, When } from './truth.ts';

const QUANTITIES: readonly { quantity: Quantity; when: When; title: string }[] = [
  { quantity: 'peak_allocated', when: 'last', title: 'peak allocated' },
  { quantity: 'peak_allocated', when: 'first', title: 'peak allocated, first step' },
  { quantity: 'peak_allocated', when: 'second', title: 'peak allocated, second step' },
  { quantity: 'allocated', when: 'last', title: 'allocated after the last step' },
  { quantity: 'allocated', when: 'first', title: 'allocated after the first step' },
  { quantity: 'peak_reserved', when: 'last', title: 'peak reserved' },
];

const NEARLY_EXACT_BYTES = 1024;

/** Relative error: (estimated - measured) / measured. */
export function errorOf({ estimated, measured }: Comparison): number {
  return measured === 0 ? 0 : (estimated - measured) / measured;
}

export function find(result: CaseResult, quantity: Quantity, when: When): Comparison | undefined {
  return result.comparisons.find((item) => item.quantity === quantity && item.when === when);
}

/** The value at a fraction of a sorted list, by nearest rank. */
export function percentile(sorted: readonly number[], fraction: number): number {
  if (sorted.length === 0) return Number.NaN;
  return sorted[Math.min(sorted.length - 1, Math.ceil(fraction * sorted.length) - 1)] ?? sorted[0];
}

export interface ErrorSummary {
  /** Cases that ran and have this measurement. */
  readonly count: number;
  readonly exact: number;
  /** Cases at most two of the allocator's smallest blocks off: 1 KiB. */
  readonly nearlyExact: number;
  /** Cases within a bound: 0.1 %, 1 %, 5 %. */
  readonly within: Readonly<Record<'0.1%' | '1%' | '5%', number>>;
  readonly median: number;
  readonly p95: number;
  readonly worst: number;
}

export function summarize(
  results: readonly CaseResult[],
  quantity: Quantity,
  when: When,
): ErrorSummary {
  const found = results
    .map((result) => find(result, quantity, when))
    .filter((comparison) => comparison !== undefined);
  const errors = found.map((comparison) => Math.abs(errorOf(comparison))).sort((a, b) => a - b);
  const below = (bound: number) => errors.filter((error) => error <= bound).length;
  return {
    count: found.length,
    exact: found.filter(({ estimated, measured }) => estimated === measured).length,
    nearlyExact: found.filter(
      ({ estimated, measured }) => Math.abs(estimated - measured) <= NEARLY_EXACT_BYTES,
    ).length,
    within: { '0.1%': below(0.001), '1%': below(0.01), '5%': below(0.05) },
    median: percentile(errors, 0.5),
    p95: percentile(errors, 0.95),
    worst: errors.at(-1) ?? Number.NaN,
  };
}

function percent(value: number): string {
  return Number.isNaN(value) ? '' : `${(100 * value).toFixed(3)} %`;
}

function difference(comparison: Comparison | undefined): string {
  if (comparison === undefined) return '';
  const bytes = comparison.estimated - comparison.measured;
  if (bytes === 0) return 'exact';
  const relative = 100 * errorOf(comparison);
  const sign = bytes > 0 ? '+' : '−';
  return `${sign}${Math.abs(relative).toFixed(3)} % (${sign}${Math.abs(bytes).toLocaleString('en-US')})`;
}

/** One line for a terminal. */
export function caseLine(result: CaseResult): string {
  const time = `${result.seconds.toFixed(0)} s`;
  if (result.failure !== null) return `${result.id}  NOT RUN  ${time}  ${result.failure}`;
  const parts = QUANTITIES.map(({ quantity, when }) => find(result, quantity, when))
    .filter((comparison) => comparison !== undefined)
    .map(
      (comparison) =>
        `${comparison.quantity.replace('_allocated', '')}@${comparison.when} ${difference(comparison)}`,
    );
  return `${result.id}  ${time}  ${parts.join('  ')}`;
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`;
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n');
}

function summaryRows(results: readonly CaseResult[], total: number): string[][] {
  return QUANTITIES.map(({ quantity, when, title }) => ({
    title,
    summary: summarize(results, quantity, when),
  }))
    .filter(({ summary }) => summary.count > 0)
    .map(({ title, summary }) => [
      title,
      `${summary.count} of ${total}`,
      String(summary.exact),
      String(summary.nearlyExact),
      String(summary.within['0.1%']),
      String(summary.within['1%']),
      String(summary.within['5%']),
      percent(summary.median),
      percent(summary.p95),
      percent(summary.worst),
    ]);
}

/** One row for each value of `keyOf`, in alphabetical order. */
function groupTable(
  title: string,
  head: readonly string[],
  results: readonly CaseResult[],
  keyOf: (result: CaseResult) => string,
): string {
  const rows = [...new Set(results.map(keyOf))].sort().map((key) => {
    const members = results.filter((result) => keyOf(result) === key);
    return [
      key,
      ...(summaryRows(members, members.length)[0]?.slice(1) ?? [`0 of ${members.length}`]),
    ];
  });
  return table([title, ...head.slice(1)], rows);
}

/** What the cases were traced with: the checkout, or each with the software that it was recorded with. */
export type TracedWith = 'checkout' | 'recorded software';

/** The whole document. `results` may hold fewer cases than the truth: what is missing is counted as not run. */
export function accuracyMarkdown(
  truth: Truth,
  results: readonly CaseResult[],
  tracedWith: TracedWith = 'checkout',
): string {
  const recorded = tracedWith === 'recorded software';
  const how = recorded
    ? ' with the commit of the checkout that recorded each, its arguments and its TransformerEngine'
    : truth.commit === undefined
      ? ''
      : ` with the checkout at ${truth.commit.slice(0, 8)}`;
  const order = new Map(truth.cases.map(({ id }, index) => [id, index]));
  const sorted = [...results].sort((a, b) => (order.get(a.id) ?? 0) - (order.get(b.id) ?? 0));
  const failed = sorted.filter(({ failure }) => failure !== null);
  const months = new Set(sorted.map(({ measured }) => measured));
  const seconds = sorted.map((result) => result.seconds).sort((a, b) => a - b);
  const memory = sorted
    .map(({ workerBytes }) => workerBytes)
    .filter((bytes): bytes is number => bytes !== null);
  const head = [
    '',
    'cases',
    'exact',
    '≤ 1 KiB',
    '≤ 0.1 %',
    '≤ 1 %',
    '≤ 5 %',
    'median',
    'p95',
    'worst',
  ];
  const sections = [
    `# Accuracy against ${truth.source}`,
    '',
    `Made by \`npm run accuracy\`. ${sorted.length} of the ${truth.cases.length} measured jobs were tried` +
      `${how}, ${sorted.length - failed.length} ran. ` +
      'Estimates are made on a machine without a GPU: the unchanged training script runs for the measured rank, and its allocations are ' +
      'replayed through the allocator. Errors are estimate against measurement; no constant is fitted to a case.',
    '',
    '## Summary',
    '',
    table(head, summaryRows(sorted, sorted.length)),
    '',
    `A case takes ${percentile(seconds, 0.5).toFixed(0)} s in the median and ${(seconds.at(-1) ?? 0).toFixed(0)} s at most` +
      (memory.length === 0
        ? '.'
        : `; the worker process holds at most ${(Math.max(...memory) / 2 ** 20).toFixed(0)} MiB.`),
    '',
    '## By group (peak allocated)',
    '',
    groupTable('group', head, sorted, ({ group }) => group),
    '',
    ...(months.size > 1
      ? [
          '## By month of the measurement (peak allocated)',
          '',
          recorded
            ? 'PyTorch, and TransformerEngine before August 2025, are the same for all estimates.'
            : 'An older measurement was made with older code and libraries than the checkout that is traced.',
          '',
          groupTable('month', head, sorted, ({ measured }) => measured),
          '',
        ]
      : []),
    ...(sorted.some(({ software }) => software !== null)
      ? [
          '## By software of the measurement (peak allocated)',
          '',
          "The image that the framework's tests ran in when the figure was recorded, from the history of its checkout. Estimates are for one",
          `version of PyTorch${recorded ? '' : ' and of the kernel libraries'}.`,
          '',
          groupTable('image', head, sorted, ({ software }) => software ?? 'not known'),
          '',
        ]
      : []),
    '## Not run',
    '',
    failed.length === 0
      ? 'Every case that was tried ran.'
      : table(
          ['case', 'why'],
          failed.map(({ id, failure }) => [id, (failure ?? '').replaceAll('|', '\\|')]),
        ),
    '',
    '## Every case',
    '',
    table(
      [
        'case',
        'measured',
        'software',
        'peak, bytes',
        'peak',
        'peak, second step',
        'peak, first step',
        'allocated',
        's',
      ],
      sorted
        .filter(({ failure }) => failure === null)
        .map((result) => [
          result.id,
          result.measured,
          result.software ?? '',
          (
            find(result, 'peak_allocated', 'last') ?? find(result, 'peak_reserved', 'last')
          )?.measured.toLocaleString('en-US') ?? '',
          difference(
            find(result, 'peak_allocated', 'last') ?? find(result, 'peak_reserved', 'last'),
          ),
          difference(find(result, 'peak_allocated', 'second')),
          difference(find(result, 'peak_allocated', 'first')),
          difference(find(result, 'allocated', 'last')),
          result.seconds.toFixed(0),
        ]),
    ),
    '',
  ];
  return sections.join('\n');
}
