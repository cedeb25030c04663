import { resolve } from 'node:path';
import { ExitStatus } from '../../base/errors.ts';
import { TraceCache, traceCacheFolder } from '../../fit/trace_cache.ts';
import { traceUnit } from '../../fit/trace_unit.ts';
import { readUnit, unitFile, unitResultFile, writeUnitResult } from '../../fit/unit_folder.ts';
import { ensureEnvironment } from '../../sidecar/environment.ts';
import { programVersion } from '../../sidecar/program_version.ts';
import { defineCommand } from '../command.ts';
import { positional } from '../option.ts';

interface FitUnitConfig {
  readonly folder: string;
  readonly index: string;
}

export const fitUnit = defineCommand<FitUnitConfig>({
  name: 'fit-unit',
  summary: 'Run one trace of a fit that was handed to Slurm or Ray',
  description:
    'Started on a node by `memtracker fit --executor slurm|ray`; not meant to be typed. Reads unit-INDEX.json of the shared folder, traces, takes the trace into the cache (MEMTRACKER_CACHE must be shared too) and writes result-INDEX.json.',
  options: {
    folder: positional('FOLDER', 'the shared folder of units'),
    index: positional('INDEX', 'number of the unit'),
  },
  examples: [{ command: 'fit-unit /shared/units 3', description: 'the fourth unit' }],
  async run(config, { env, cwd, output, signal }) {
    const folder = resolve(cwd, config.folder);
    const index = Number(config.index);
    const { key, unit } = await readUnit(unitFile(folder, index));
    const environment = await ensureEnvironment({
      env,
      torchIndex: undefined,
      signal,
      onProgress: (line) => output.progress(line),
    });
    const result = await traceUnit(key, unit, {
      cache: new TraceCache(traceCacheFolder(env)),
      trace: {
        environment,
        env,
        memtrackerVersion: programVersion(),
        signal,
        onSetup: (line) => output.progress(line),
      },
      onProgress: (live) => output.progress(live.line(`rank ${unit.rank}`)),
    });
    output.endProgress();
    await writeUnitResult(unitResultFile(folder, index), result);
    if (result.failure === null) return ExitStatus.done;
    output.error(result.failure);
    return ExitStatus.trainingFailed;
  },
});
