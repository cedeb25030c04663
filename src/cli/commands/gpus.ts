import Table from 'cli-table3';
import { formatBytes } from '../../base/bytes.ts';
import { GPU_MODELS } from '../../device/gpus.ts';
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
    const table = new Table({
      head: ['GPU', 'usable', 'bytes', 'capability', 'source'],
      style: { head: [] },
    });
    for (const gpu of GPU_MODELS) {
      const capability = gpu.capability.join('.');
      table.push([gpu.name, formatBytes(gpu.usableBytes), gpu.usableBytes, capability, gpu.source]);
    }
    output.product(table.toString());
  },
});
