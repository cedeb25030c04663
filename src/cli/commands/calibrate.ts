import { resolve } from 'node:path';
import { formatBytes } from '../../base/bytes.ts';
import {
  calibrate as calibrateRuns,
  readCaptureHeaders,
} from '../../measured/calibration/calibrate.ts';
import {
  type ProfileInput,
  profilePath,
  writeProfile,
} from '../../measured/calibration/profile.ts';
import { plain, type Section, strong, warning } from '../../report/section.ts';
import { textOf } from '../../report/text.ts';
import { defineCommand } from '../command.ts';
import { flag, positional, text } from '../option.ts';

interface CalibrateConfig {
  readonly dir: string;
  readonly name: string | undefined;
  readonly out: string | undefined;
  readonly json: boolean;
}

export const calibrate = defineCommand<CalibrateConfig>({
  name: 'calibrate',
  summary: 'Make a calibration profile of memory outside the allocator from captured runs',
  description:
    'Takes runs captured with --purpose calibration. Memory outside the allocator (used on the device − reserved) is taken phase by phase over all ranks, and split into what formulas and NCCL\u2019s own statistics explain and a residual. `report`, `compare` and the others use the profile with --profile; it holds for the topology that it was measured on.',
  options: {
    dir: positional('DIR', 'folder of captured runs, or one file'),
    name: text('NAME', 'name of the profile', { defaultText: 'GPU and ranks' }).optional(),
    out: text('FILE', 'where to save it', {
      short: 'o',
      defaultText: '~/.config/memtracker/calibration/NAME.json',
    }).optional(),
    json: flag('print the profile as JSON'),
  },
  examples: [
    {
      command: 'calibrate run1 --name h100-8',
      description: 'a profile, used with `memtracker report run.mtrace --profile h100-8`',
    },
  ],
  async run(config, { cwd, env, output }) {
    const headers = await readCaptureHeaders(resolve(cwd, config.dir));
    const { gpu, world } = headers[0];
    const name = config.name ?? `${gpu.name.toLowerCase().replace(/[^a-z0-9]+/g, '-')}-${world}`;
    const profile = calibrateRuns(name, headers);
    const path = config.out === undefined ? profilePath(name, env) : resolve(cwd, config.out);
    await writeProfile(path, profile);
    if (config.json) {
      output.json(profile);
      return undefined;
    }
    const style = { width: output.width, bold: output.colors.bold, warn: output.colors.yellow };
    output.product(textOf(sectionsOf(profile, path), style));
    return undefined;
  },
});

function sectionsOf(profile: ProfileInput, path: string): Section[] {
  const { topology, versions, ranks } = profile;
  const range = ({ low, likely, high }: { low: number; likely: number; high: number }): string =>
    low === high
      ? formatBytes(likely)
      : `${formatBytes(low)} … ${formatBytes(likely)} … ${formatBytes(high)}`;
  return [
    {
      sentences: [
        strong(`Profile ${profile.name}: ${path}`),
        plain(
          `${ranks} ranks on ${topology.gpu}, ${topology.world} in the job, ${topology.gpus_per_node} a node; torch ${versions.torch}, CUDA ${versions.cuda ?? 'unknown'}, NCCL ${versions.nccl ?? 'unknown'}, driver ${versions.driver ?? 'unknown'}`,
        ),
      ],
      tables: [
        {
          columns: [
            { head: 'Outside the allocator after', flexible: true },
            { head: 'Samples', align: 'right' },
            { head: 'Measured', align: 'right' },
            { head: 'Explained', align: 'right' },
            { head: 'Residual', align: 'right' },
          ],
          rows: profile.phases.map(({ phase, samples, measured, explained, residual }) => [
            phase,
            String(samples),
            range(measured),
            explained.length === 0
              ? 'nothing'
              : formatBytes(explained.reduce((sum, { bytes }) => sum + bytes.likely, 0)),
            range(residual),
          ]),
        },
      ],
    },
    { sentences: profile.notes.map(warning), tables: [] },
  ];
}
