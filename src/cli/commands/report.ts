import { resolve } from 'node:path';
import { analyze } from '../../attribution/analysis.ts';
import { ExitStatus } from '../../base/errors.ts';
import { reportDocument } from '../../report/document.ts';
import { textReport } from '../../report/text.ts';
import { defineCommand } from '../command.ts';
import { flag, positional, text } from '../option.ts';

interface ReportConfig {
  readonly trace: string;
  readonly allocConf: string | undefined;
  readonly gpu: string | undefined;
  readonly json: boolean;
}

export const report = defineCommand<ReportConfig>({
  name: 'report',
  summary: 'Print where the memory of a traced job peaks and what stood there',
  options: {
    trace: positional('TRACE', 'a trace file, as `memtracker trace` writes it'),
    allocConf: text(
      'CONF',
      'replay with this PYTORCH_ALLOC_CONF instead of the job\u2019s own',
    ).optional(),
    gpu: text('NAME|BYTES', 'replay on this GPU or capacity instead of the traced one').optional(),
    json: flag('print JSON (docs/report.schema.json)'),
  },
  examples: [
    { command: 'report run.mtrace', description: 'peak, phases and holders of one rank' },
    {
      command: 'report run.mtrace --gpu a100-80gb --alloc-conf expandable_segments:True',
      description: 'the same run on another GPU, with other allocator settings',
    },
  ],
  async run(config, { cwd, output }) {
    const analysis = await analyze(resolve(cwd, config.trace), {
      ...(config.allocConf === undefined ? {} : { allocConf: config.allocConf }),
      ...(config.gpu === undefined ? {} : { gpu: config.gpu }),
    });
    if (config.json) {
      output.json(reportDocument(analysis));
      return ExitStatus.done;
    }
    output.product(
      textReport(analysis, {
        width: output.width,
        top: 8,
        depth: 3,
        bold: output.colors.bold,
        warn: output.colors.yellow,
      }),
    );
    return ExitStatus.done;
  },
});
