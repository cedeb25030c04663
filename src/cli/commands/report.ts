import { resolve } from 'node:path';
import { z } from 'zod';
import type { Analysis } from '../../attribution/analysis.ts';
import { ExitStatus } from '../../base/errors.ts';
import { analyzeFile } from '../../measured/analysis.ts';
import { reportDocument } from '../../report/document.ts';
import { htmlReport } from '../../report/html/html_report.ts';
import { markdownOf } from '../../report/markdown.ts';
import { reportJunit } from '../../report/report_junit.ts';
import { REPORT_DEFAULTS, reportSections } from '../../report/report_sections.ts';
import { textOf } from '../../report/text.ts';
import { MEMORY_KINDS, type MemoryKind } from '../../timeline/timeline.ts';
import { defineCommand } from '../command.ts';
import { flag, integer, list, option, positional, text } from '../option.ts';
import { writeProduct } from '../product_file.ts';
import { REPLAY_OPTIONS, type ReplayConfig, replayTarget } from '../replay_options.ts';

interface ReportConfig extends ReplayConfig {
  readonly trace: string;
  readonly at: MemoryKind | number;
  readonly top: number;
  readonly depth: number;
  readonly json: boolean;
  readonly markdown: boolean;
  readonly html: string | undefined;
  readonly beside: readonly string[];
  readonly junit: string | undefined;
}

/** `allocated`, or the number of an event. */
export const peakOrEvent = z.string().transform((written, context): MemoryKind | number => {
  const kind = MEMORY_KINDS.find((name) => name === written);
  if (kind !== undefined) return kind;
  if (/^\d+$/.test(written)) return Number(written);
  context.addIssue(`must be one of ${MEMORY_KINDS.join(', ')} or the number of an event`);
  return z.NEVER;
});

export const report = defineCommand<ReportConfig>({
  name: 'report',
  summary: 'Print where the memory of a traced or measured job peaks and what stood there',
  options: {
    trace: positional(
      'TRACE',
      'a trace of `memtracker trace`, a run of `memtracker capture`, or a snapshot of torch.cuda.memory._dump_snapshot',
    ),
    ...REPLAY_OPTIONS,
    at: option(
      'PEAK|EVENT',
      `which peak is taken apart (${MEMORY_KINDS.join(', ')}), or an event`,
      peakOrEvent,
    ).default(REPORT_DEFAULTS.at),
    top: integer('N', 'rows of each list', { minimum: 1 }).default(REPORT_DEFAULTS.top),
    depth: integer('N', 'nesting of the phases shown').default(REPORT_DEFAULTS.depth),
    json: flag('print JSON (docs/report.schema.json)'),
    markdown: flag('print Markdown'),
    html: text('FILE', 'write the page instead: one file, opened by a double-click').optional(),
    beside: list('TRACE', 'for --html: another rank or run, shown beside and over this one'),
    junit: text('FILE', 'also write JUnit XML: fits, complete, covered').optional(),
  },
  examples: [
    { command: 'report run.mtrace', description: 'peak, phases and holders of one rank' },
    {
      command: 'report run.mtrace --gpu a100-80gb --alloc-conf expandable_segments:True',
      description: 'the same run on another GPU, with other allocator settings',
    },
    {
      command: 'report run.mtrace --at reserved --top 20',
      description: 'what stood there when reserved memory had its peak',
    },
    {
      command: 'report rank0.mtrace --html report.html --beside rank4.mtrace',
      description: 'timeline, flame graph, tensors and both ranks in one page',
    },
    { command: 'report snapshot.pickle', description: 'the same of what a real GPU recorded' },
  ],
  async run(config, { cwd, output }) {
    const analysis = await analyzeFile(resolve(cwd, config.trace), replayTarget(config, cwd));
    if (config.junit !== undefined) {
      await writeProduct(resolve(cwd, config.junit), reportJunit(analysis));
    }
    // What a damaged, cut or failed run still holds is reported, but it is not the whole job.
    const status = analysis.trace.integrity.complete ? ExitStatus.done : ExitStatus.uncovered;
    if (config.html !== undefined) {
      const beside: Analysis[] = [];
      for (const path of config.beside) {
        beside.push(await analyzeFile(resolve(cwd, path), replayTarget(config, cwd)));
      }
      const path = resolve(cwd, config.html);
      await writeProduct(path, await htmlReport(analysis, beside));
      output.product(path);
      return status;
    }
    if (config.json) {
      output.json(reportDocument(analysis, { at: config.at, top: Math.max(100, config.top) }));
      return status;
    }
    const sections = reportSections(analysis, config);
    const style = { width: output.width, bold: output.colors.bold, warn: output.colors.yellow };
    output.product(config.markdown ? markdownOf(sections) : textOf(sections, style));
    return status;
  },
});
