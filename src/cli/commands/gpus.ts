import { formatBytes } from '../../base/bytes.ts';
import { GPU_MODELS } from '../../device/gpus.ts';
import { tableLines } from '../../report/table.ts';
import { defineCommand } from '../command.ts';
import { flag } from '../option.ts';

interface GpusConfig {
  readonly json: boolean;
}

export const gpus = defineCommand<GpusConfig>({
  name: 'gpus',
  summary: 'List the GPUs that --gpu knows, with their usable bytes and where each was read',
  options: { json: flag('print JSON') },
  examples: [{ command: 'gpus', description: 'what may stand after --gpu' }],
  async run(config, { output }) {
    if (config.json) {
      output.json(GPU_MODELS);
      return;
    }
    const columns = [
      { head: 'GPU' },
      { head: 'Usable', align: 'right' },
      { head: 'Bytes', align: 'right' },
      { head: 'Capability' },
      { head: 'Source' },
    ] as const;
    const rows = GPU_MODELS.map((gpu) => [
      gpu.name,
      formatBytes(gpu.usableBytes),
      String(gpu.usableBytes),
      gpu.capability.join('.'),
      gpu.source,
    ]);
    output.product(tableLines(columns, rows, output.width).join('\n'));
  },
});
