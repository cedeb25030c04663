import { createWriteStream } from 'node:fs';
import { resolve } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { ExitStatus, UserError } from '../../base/errors.ts';
import { analyzeFile } from '../../measured/analysis.ts';
import { CSV_TABLES, type CsvTable } from '../../report/formats/format.ts';
import { EXPORT_FORMATS } from '../../report/formats/formats.ts';
import type { MemoryKind } from '../../timeline/timeline.ts';
import { defineCommand } from '../command.ts';
import { choice, option, positional, text } from '../option.ts';
import { REPLAY_OPTIONS, type ReplayConfig, replayTarget } from '../replay_options.ts';
import { peakOrEvent } from './report.ts';

interface ExportConfig extends ReplayConfig {
  readonly trace: string;
  readonly format: string;
  readonly out: string | undefined;
  readonly device: string | undefined;
  readonly at: MemoryKind | number;
  readonly table: CsvTable;
}

const names = EXPORT_FORMATS.map(({ name }) => name);

// `export` is a word of the language.
export const exportCommand = defineCommand<ExportConfig>({
  name: 'export',
  summary: 'Write a run in the format of another tool',
  description: EXPORT_FORMATS.map(({ name, description }) => `${name}: ${description}`).join('\n'),
  options: {
    trace: positional('TRACE', 'a trace or a measured run'),
    format: choice(names, 'what to write'),
    out: text('FILE', 'where to write it', { short: 'o', defaultText: 'stdout' }).optional(),
    device: text('NAME', 'which device', { defaultText: 'the first GPU' }).optional(),
    at: option(
      'PEAK|EVENT',
      'which peak or event, for speedscope and csv tensors',
      peakOrEvent,
    ).default('allocated'),
    table: choice(CSV_TABLES, 'which table, for csv').default('tensors'),
    ...REPLAY_OPTIONS,
  },
  examples: [
    {
      command: 'export run.mtrace --format memory_viz --out run.pickle',
      description: 'open it on pytorch.org/memory_viz',
    },
    {
      command: 'export run.mtrace --format csv --table allocations',
      description: 'every allocation of the run',
    },
  ],
  async run(config, { cwd, output }) {
    const analysis = await analyzeFile(resolve(cwd, config.trace), replayTarget(config, cwd));
    const device =
      config.device === undefined
        ? (analysis.devices.find(({ capacity }) => capacity !== null) ?? analysis.devices[0])
        : analysis.devices.find(({ name }) => name === config.device);
    if (device === undefined) {
      const known = analysis.devices.map(({ name }) => name).join(', ');
      throw new UserError(
        'no-device',
        config.device === undefined
          ? 'the run never used a device'
          : `${config.device} is not a device of the run; there are: ${known}`,
      );
    }
    const format = EXPORT_FORMATS.find(({ name }) => name === config.format);
    if (format === undefined) throw new Error(`no format ${config.format}`);
    const parts =
      analysis.measured !== undefined && format.recorded !== undefined
        ? format.recorded(analysis.measured)
        : format.write(analysis, device, { at: config.at, table: config.table });
    if (config.out === undefined) {
      await pipeline(Readable.from(parts), process.stdout, { end: false });
      return ExitStatus.done;
    }
    const path = resolve(cwd, config.out);
    try {
      await pipeline(Readable.from(parts), createWriteStream(path));
    } catch (error) {
      if (error instanceof UserError) throw error;
      throw new UserError('export-write', `cannot write ${path}: ${(error as Error).message}`, {
        cause: error,
      });
    }
    output.note(`wrote ${path}`);
    return ExitStatus.done;
  },
});
