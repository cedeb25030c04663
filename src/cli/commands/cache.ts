import { formatBytes } from '../../base/bytes.ts';
import { TraceCache, traceCacheFolder } from '../../fit/trace_cache.ts';
import { tableLines } from '../../report/table.ts';
import { defineCommand } from '../command.ts';
import { flag, integer, size } from '../option.ts';

interface ListConfig {
  readonly json: boolean;
}

export const cacheList = defineCommand<ListConfig>({
  name: 'cache list',
  summary: 'List the traces that fit keeps',
  options: { json: flag('print JSON') },
  examples: [{ command: 'cache list', description: 'what is kept, the last used first' }],
  async run(config, { env, output }) {
    const cache = new TraceCache(traceCacheFolder(env));
    const traces = await cache.list();
    if (config.json) {
      output.json({ schema: 'memtracker.cache/1', folder: cache.folder, traces });
      return;
    }
    const rows = await Promise.all(
      traces.map(async (trace) => [
        trace.key.slice(0, 12),
        formatBytes(trace.bytes),
        new Date(trace.used).toISOString().slice(0, 16).replace('T', ' '),
        await cache.describe(trace),
      ]),
    );
    const columns = [
      { head: 'Key' },
      { head: 'Size', align: 'right' as const },
      { head: 'Last used (UTC)' },
      { head: 'Run', flexible: true },
    ];
    output.product(tableLines(columns, rows, output.width).join('\n'));
    output.product(`${traces.length} traces in ${cache.folder}`);
  },
});

interface PruneConfig {
  readonly days: number | undefined;
  readonly keep: number | undefined;
  readonly all: boolean;
}

export const cachePrune = defineCommand<PruneConfig>({
  name: 'cache prune',
  summary: 'Remove traces that fit keeps',
  options: {
    days: integer('N', 'remove what was not used for N days').optional(),
    keep: size('SIZE', 'keep at most SIZE, the last used first').optional(),
    all: flag('remove everything'),
  },
  examples: [
    { command: 'cache prune --days 30', description: 'what was not used for a month' },
    { command: 'cache prune --keep 1GiB', description: 'all but the last used gibibyte' },
  ],
  async run(config, { env, output }) {
    const cache = new TraceCache(traceCacheFolder(env));
    const removed = await cache.prune({
      ...(config.days !== undefined && { olderThanMs: config.days * 86_400_000 }),
      ...(config.keep !== undefined && { maxBytes: config.keep }),
      ...(config.all && { maxBytes: 0 }),
    });
    const bytes = removed.reduce((sum, trace) => sum + trace.bytes, 0);
    output.product(`${removed.length} traces removed, ${formatBytes(bytes)}`);
  },
});
