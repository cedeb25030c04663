// Options of every command that replays a trace: on which device, with which allocator settings, NCCL and other memory.

import { resolve } from 'node:path';
import { readComponents } from '../external/component.ts';
import type { AnyAnalysisOptions } from '../measured/analysis.ts';
import { choice, flag, integer, type OptionTable, text } from './option.ts';

export interface ReplayConfig {
  readonly allocConf: string | undefined;
  readonly gpu: string | undefined;
  readonly nccl: string | undefined;
  readonly topology: string | undefined;
  readonly external: string | undefined;
  readonly profile: string | undefined;
  readonly extrapolate: boolean;
  readonly bound: 'low' | 'likely' | 'high';
  readonly historyEntries: number | undefined;
}

export const REPLAY_OPTIONS: OptionTable<ReplayConfig> = {
  allocConf: text(
    'CONF',
    'replay with this PYTORCH_ALLOC_CONF instead of the job\u2019s own',
  ).optional(),
  gpu: text('NAME|BYTES', 'replay on this GPU or capacity instead of the traced one').optional(),
  nccl: text('VERSION', 'NCCL version of the job', {
    defaultText: 'what the trace says, else that of the pinned PyTorch',
  }).optional(),
  topology: text('NAME', 'topology preset or file (memtracker nccl --help lists them)', {
    defaultText: 'the preset of the GPU',
  }).optional(),
  external: text('FILE', 'JSON list of components outside the allocator and NCCL').optional(),
  profile: text(
    'NAME|FILE',
    'calibration profile for memory outside the allocator (memtracker calibrate makes one)',
  ).optional(),
  extrapolate: flag('use the profile although it was measured on another topology'),
  bound: choice(
    ['low', 'likely', 'high'],
    'which figure of uncertain memory takes room on the device',
  ).default('likely'),
  // Without it a round number of entries over memory that was there before is taken for a full ring buffer.
  historyEntries: integer(
    'N',
    'of a snapshot: the max_entries that its history was recorded with',
    { minimum: 1 },
  ).optional(),
};

/** @throws UserError when the file of components does not read. */
export function replayTarget(config: ReplayConfig, cwd: string): AnyAnalysisOptions {
  const { allocConf, gpu, nccl, topology, external, bound, historyEntries } = config;
  const { profile, extrapolate } = config;
  return {
    bound,
    extrapolate,
    ...(profile === undefined ? {} : { profile }),
    ...(allocConf === undefined ? {} : { allocConf }),
    ...(gpu === undefined ? {} : { gpu }),
    ...(nccl === undefined ? {} : { ncclVersion: nccl }),
    ...(topology === undefined ? {} : { topology }),
    ...(external === undefined ? {} : { components: readComponents(resolve(cwd, external)) }),
    ...(historyEntries === undefined ? {} : { maxEntries: historyEntries }),
  };
}
