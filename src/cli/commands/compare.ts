import { resolve } from 'node:path';
import { z } from 'zod';
import { ExitStatus, UserError } from '../../base/errors.ts';
import { compareRuns } from '../../compare/comparison.ts';
import { compareWithMeasurement } from '../../compare/gap.ts';
import { parseThreshold, type Threshold } from '../../compare/threshold.ts';
import { analyzeFile } from '../../measured/analysis.ts';
import { compareDocument } from '../../report/compare_document.ts';
import { compareJunit } from '../../report/compare_junit.ts';
import { compareSections, overThreshold } from '../../report/compare_sections.ts';
import { gapDocument } from '../../report/gap_document.ts';
import { gapSections } from '../../report/gap_sections.ts';
import { markdownOf } from '../../report/markdown.ts';
import { textOf } from '../../report/text.ts';
import { defineCommand } from '../command.ts';
import { flag, integer, option, positional, text } from '../option.ts';
import { writeProduct } from '../product_file.ts';
import { REPLAY_OPTIONS, type ReplayConfig, replayTarget } from '../replay_options.ts';

interface CompareConfig extends ReplayConfig {
  readonly a: string;
  readonly b: string;
  readonly failAbove: Threshold | undefined;
  readonly top: number;
  readonly json: boolean;
  readonly markdown: boolean;
  readonly junit: string | undefined;
}

const threshold = z.string().transform((written, context): Threshold => {
  try {
    return parseThreshold(written);
  } catch (error) {
    context.addIssue((error as Error).message);
    return z.NEVER;
  }
});

export const compare = defineCommand<CompareConfig>({
  name: 'compare',
  summary: 'Say what changes between two runs, phase by phase, and what causes it',
  description:
    'Phases are matched by name, step, micro-batch and occurrence; those of one run only are shown as such. With a measured run (a snapshot or a captured run) as the second, the gap is estimate − measured, and phases that ran out of memory are shown but not scored. Exit status 1 when --fail-above is passed.',
  options: {
    a: positional('A', 'trace of the first run'),
    b: positional('B', 'trace of the second run, or a measured run'),
    ...REPLAY_OPTIONS,
    failAbove: option(
      'SIZE|PERCENT',
      'fail when a peak (allocated, active, reserved, resident) grows by more than this',
      threshold,
    ).optional(),
    top: integer('N', 'rows of each list', { minimum: 1 }).default(8),
    json: flag('print JSON (docs/compare.schema.json)'),
    markdown: flag('print Markdown, for a pull-request comment'),
    junit: text('FILE', 'also write JUnit XML, one case a peak').optional(),
  },
  examples: [
    { command: 'compare main.mtrace branch.mtrace', description: 'what a change costs' },
    {
      command: 'compare main.mtrace branch.mtrace --markdown --fail-above 2%',
      description: 'a comment for the pull request, and a failing check when a peak grows',
    },
    {
      command: 'compare estimate.mtrace snapshot.pickle',
      description: 'an estimate beside what a GPU recorded',
    },
  ],
  async run(config, { cwd, output }) {
    const options = replayTarget(config, cwd);
    const a = await analyzeFile(resolve(cwd, config.a), options);
    const b = await analyzeFile(resolve(cwd, config.b), options);
    const style = { width: output.width, bold: output.colors.bold, warn: output.colors.yellow };
    if ((a.measured === undefined) !== (b.measured === undefined)) {
      const unused = config.failAbove !== undefined ? '--fail-above' : config.junit && '--junit';
      if (unused) {
        throw new UserError(
          'options',
          `${unused} is about growth from one run to the next of a kind; an estimate beside a measurement is a gap: leave it out`,
        );
      }
      const gaps = compareWithMeasurement(a, b);
      const sections = gapSections(gaps);
      if (config.json) output.json(gapDocument(gaps));
      else output.product(config.markdown ? markdownOf(sections) : textOf(sections, style));
      return ExitStatus.done;
    }
    const comparison = compareRuns(a, b);
    const limit = config.failAbove ?? null;
    if (config.junit !== undefined) {
      await writeProduct(resolve(cwd, config.junit), compareJunit(comparison, limit));
    }
    if (config.json) {
      output.json(compareDocument(comparison, limit));
    } else {
      const sections = compareSections(comparison, { top: config.top, threshold: limit });
      output.product(config.markdown ? markdownOf(sections) : textOf(sections, style));
    }
    if (limit === null || overThreshold(comparison, limit).length === 0) return ExitStatus.done;
    return ExitStatus.doesNotFit;
  },
});
