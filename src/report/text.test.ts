import { expect, test } from 'vitest';
import { syntheticTrace } from '../../tests/traces/synthetic.ts';
import { analyzeTrace } from '../attribution/analysis.ts';
import { compareRuns } from '../compare/comparison.ts';
import { parseThreshold } from '../compare/threshold.ts';
import { compareJunit } from './compare_junit.ts';
import { compareSections } from './compare_sections.ts';
import { junitXml } from './junit.ts';
import { markdownOf } from './markdown.ts';
import { reportJunit } from './report_junit.ts';
import { reportSections } from './report_sections.ts';
import { cutMiddle, tableLines } from './table.ts';
import { textOf } from './text.ts';

const analysis = analyzeTrace(syntheticTrace({ steps: 3, leakMiB: 5, microBatches: 3 }));

test('the report fits 100 columns', () => {
  const lines = textOf(reportSections(analysis)).split('\n');
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(100);
});

test('the answer stands first: peak, rank, capacity, percent, evidence', () => {
  const [first, second, , , evidence] = textOf(reportSections(analysis)).split('\n');
  expect(first).toMatch(/^cuda:0 of rank 0 peaks at .* % of h100-80gb \(79\.18 GiB\)$/);
  expect(second).toBe(
    '459.00 MiB allocated in step[step=3]/forward_backward[micro_batch=1]/backward',
  );
  expect(evidence).toMatch(/^Evidence: allocator executed, memory outside it /);
});

test('the phase table has the columns Phase, Device, Before, After, Delta, Peak', () => {
  const lines = textOf(reportSections(analysis)).split('\n');
  const head = lines.findIndex((line) => line.startsWith('Phase'));
  expect(lines[head].split(/\s+/)).toEqual(['Phase', 'Device', 'Before', 'After', 'Delta', 'Peak']);
  expect(lines[head + 2].split(/\s{2,}/)).toEqual([
    'init/model',
    'cuda:0',
    '0 B',
    '32.00 MiB',
    '+32.00 MiB',
    '32.00 MiB',
  ]);
});

test('what grows is said in a sentence with its place', () => {
  expect(textOf(reportSections(analysis))).toContain(
    '+5.00 MiB each step: aten.stack at metrics.py:12 append is kept (2 times in a row).',
  );
});

test('a run of very many phases keeps its table short and its largest peak in sight', () => {
  const many = analyzeTrace(syntheticTrace({ steps: 90, microBatches: 1, layers: 1 }));
  const text = textOf(reportSections(many));
  expect(text.split('\n').length).toBeLessThan(150);
  expect(text).toMatch(/… \d+ more \(--json has all\)/);
});

test('Markdown escapes what Markdown would read, and has one table row a line', () => {
  const markdown = markdownOf([
    {
      title: 'a <b> & c',
      sentences: [{ text: 'use *all* of `it` | now', tone: 'strong' }],
      tables: [{ columns: [{ head: 'x' }], rows: [['a|b'], ['  nested']] }],
      folded: true,
    },
  ]);
  expect(markdown).toBe(
    [
      '<details><summary>a &lt;b&gt; &amp; c</summary>',
      '**use \\*all\\* of \\`it\\` \\| now**',
      '| x |\n| --- |\n| a\\|b |\n| \u2003nested |',
      '</details>\n',
    ].join('\n\n'),
  );
});

test('JUnit of a comparison fails the peaks that grow by more than the threshold', () => {
  const larger = analyzeTrace(syntheticTrace({ savedMiB: 32 }));
  const xml = compareJunit(
    compareRuns(analyzeTrace(syntheticTrace()), larger),
    parseThreshold('10%'),
  );
  expect(xml).toContain('<testcase name="peak of allocated" classname="cuda:0" time="0.000">');
  expect(xml).toContain('grows by more than 10 %: 449.00 MiB -&gt; 641.00 MiB (+192.00 MiB)');
  expect(xml).toMatch(/<testsuites name="memtracker compare" tests="6" failures="[34]"/);
});

test('JUnit of a report says whether it fits', () => {
  expect(reportJunit(analysis)).toContain('name="cuda:0 fits on h100-80gb"');
  const full = analyzeTrace(syntheticTrace(), { gpu: '300MiB' });
  expect(reportJunit(full)).toContain('<failure message="out of memory in step[step=1]');
});

test('JUnit has no character that XML cannot hold', () => {
  const xml = junitXml('n', [
    { suite: 's', name: 'a "quoted" <name>\u0007', outcome: { kind: 'error', message: 'x & y' } },
  ]);
  expect(xml).toContain('name="a &quot;quoted&quot; &lt;name&gt;"');
  expect(xml).toContain('message="x &amp; y"');
});

test('a comparison as Markdown is fit for a comment: the answer first, the phases folded', () => {
  const other = analyzeTrace(syntheticTrace({ savedMiB: 18 }));
  const sections = compareSections(compareRuns(analyzeTrace(syntheticTrace()), other), {
    top: 5,
    threshold: null,
  });
  const markdown = markdownOf(sections);
  expect(markdown.split('\n')[0]).toBe(
    '**cuda:0: the allocated peak grows by 24.00 MiB (+5.3 %), 449.00 MiB → 473.00 MiB**',
  );
  expect(markdown).toContain('<details><summary>Phases of cuda:0</summary>');
});

test('a table gives way in one column only and never grows beyond its width', () => {
  const lines = tableLines(
    [
      { head: 'Name', flexible: true },
      { head: 'Bytes', align: 'right' },
    ],
    [['a very long name of a module that does not fit', '1.00 GiB']],
    30,
  );
  expect(lines).toEqual([
    'Name                     Bytes',
    '────────────────────  ────────',
    'a very lon…s not fit  1.00 GiB',
  ]);
  expect(cutMiddle('layers.11.attention.wq', 15)).toBe('layers.…tion.wq');
});
