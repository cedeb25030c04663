import { relative, resolve } from 'node:path';
import { formatBytes } from '../../base/bytes.ts';
import { ExitStatus, UserError } from '../../base/errors.ts';
import { findGpu } from '../../device/gpus.ts';
import { ensureEnvironment } from '../../sidecar/environment.ts';
import { programVersion } from '../../sidecar/program_version.ts';
import {
  identityProfilePath,
  parseIdentity,
  type RunIdentity,
  readIdentity,
  resolveIdentity,
} from '../../sidecar/run_identity.ts';
import { checkJob, type TraceJob, type TraceOutcome, traceRun } from '../../sidecar/trace_run.ts';
import { type CommandContext, defineCommand } from '../command.ts';
import { flag, integer, keyValues, list, passthrough, text } from '../option.ts';
import type { Output } from '../output.ts';

interface TraceConfig {
  readonly framework: string;
  readonly checkout: string | undefined;
  readonly world: number;
  readonly rank: number;
  readonly gpusPerNode: number;
  readonly gpu: string;
  readonly steps: number;
  readonly stackDepth: number;
  readonly option: Readonly<Record<string, string | number | boolean>>;
  readonly target: readonly string[];
  readonly targetFile: string | undefined;
  readonly targetProfile: string | undefined;
  readonly out: string | undefined;
  readonly torchIndex: string | undefined;
  readonly verbose: boolean;
  readonly json: boolean;
  readonly argv: readonly string[];
}

export const trace = defineCommand<TraceConfig>({
  name: 'trace',
  summary: 'Run one rank of a training job without a GPU and record every allocation',
  description:
    'The real training code runs on fake tensors, for one rank of a world of any size. What it allocates is written to a trace file, from which `memtracker report` and the others answer. The Python environment is made on first use (see `memtracker setup`).',
  options: {
    framework: text('NAME', 'torchtitan, megatron, or script for any PyTorch script').default(
      'script',
    ),
    checkout: text('DIR', 'folder of the framework checkout; it is not changed').optional(),
    world: integer('N', 'ranks of the job', { minimum: 1 }).default(1),
    rank: integer('N', 'the rank to run').default(0),
    gpusPerNode: integer('N', 'GPUs of one node; decides local ranks', { minimum: 1 }).default(8),
    gpu: text('NAME', 'the GPU that the training code sees; memtracker gpus lists them').default(
      'h100-80gb',
    ),
    steps: integer('N', 'optimizer steps to run; the first has no optimizer state yet', {
      minimum: 1,
    }).default(2),
    stackDepth: integer('N', 'Python frames kept for each allocation, 0 for none').default(24),
    option: keyValues('an option of the framework adapter'),
    target: list(
      'NAME=VALUE',
      'what the real job will run on: training_code, torchao, pytorch, cuda, nccl or container; NAME=null: nothing stands for it',
    ),
    targetFile: text('FILE', 'the same as JSON; --target wins over it').optional(),
    targetProfile: text(
      'NAME',
      'the same from ~/.config/memtracker/identities/NAME.json, as a fallback',
    ).optional(),
    out: text('FILE', 'the trace file', {
      short: 'o',
      defaultText: 'FRAMEWORK-rankN.mtrace',
    }).optional(),
    torchIndex: text('auto|default|URL', 'where torch comes from on first use', {
      env: 'MEMTRACKER_TORCH_INDEX',
      defaultText: 'auto',
    }).optional(),
    verbose: flag('show what the training code prints, on stderr', { short: 'v' }),
    json: flag('print the outcome as JSON'),
    argv: passthrough('ARGUMENTS', 'the arguments of the framework, or SCRIPT.py and its own'),
  },
  examples: [
    {
      command: 'trace --world 8 --out run.mtrace -- train.py --its --args',
      description: 'any PyTorch script, rank 0 of 8',
    },
    {
      command:
        'trace --framework torchtitan --checkout ~/torchtitan --world 8 --out run.mtrace -- --module llama3 --config llama3_8b',
      description: 'a TorchTitan checkout',
    },
  ],
  async run(config, context) {
    const { output, env, cwd, signal } = context;
    const job: TraceJob = {
      ...config,
      cwd,
      gpu: findGpu(config.gpu),
      options: config.option,
      out: config.out ?? `${config.framework}-rank${config.rank}.mtrace`,
      target: await targetIdentity(config, context),
    };
    checkJob(job);
    const environment = await ensureEnvironment({
      env,
      torchIndex: config.torchIndex,
      signal,
      onProgress: (line, kind) => output.progress(line, { force: kind === 'stage' }),
    });
    output.endProgress();
    const label = `rank ${config.rank} of ${config.world}`;
    const outcome = await traceRun(job, {
      environment,
      env,
      memtrackerVersion: programVersion(),
      signal,
      onSetup: (line, kind) => output.progress(line, { force: kind === 'stage' }),
      onProgress: (progress) => output.progress(progress.line(label)),
      ...(config.verbose && { onLine: (line: string) => output.log(line) }),
    });
    output.endProgress();
    if (config.json) output.json(outcomeJson(outcome));
    else summarize(outcome, context);
    return finish(outcome, output);
  },
});

/** The declared identity of the real job: flags over a file over a profile over unknown. */
async function targetIdentity(
  { target, targetFile, targetProfile }: TraceConfig,
  { cwd, env }: CommandContext,
): Promise<RunIdentity> {
  // Kept as text: the version 2.30 is not the number 2.3.
  const flags = Object.fromEntries(
    target.map((pair) => {
      const at = pair.indexOf('=');
      if (at <= 0) {
        throw new UserError('usage', `--target must be written NAME=VALUE, got "${pair}"`);
      }
      const value = pair.slice(at + 1);
      return [pair.slice(0, at), value === 'null' ? null : value];
    }),
  );
  return resolveIdentity({
    flags: parseIdentity(flags, '--target'),
    ...(targetFile !== undefined && { file: await readIdentity(resolve(cwd, targetFile)) }),
    ...(targetProfile !== undefined && {
      profile: await readIdentity(identityProfilePath(targetProfile, env)),
    }),
  });
}

function finish(outcome: TraceOutcome, output: Output): ExitStatus {
  const fatal = outcome.footer.status !== 'done';
  for (const problem of outcome.problems) {
    if (fatal) output.error(problem);
    else output.warn(problem);
  }
  if (outcome.exitStatus === ExitStatus.trainingFailed && outcome.fatal !== undefined) {
    output.note(outcome.fatal.traceback.trimEnd());
  }
  return outcome.exitStatus;
}

function summarize(outcome: TraceOutcome, { output, cwd }: CommandContext): void {
  const { footer, uncovered, livePeak } = outcome;
  const path = relative(cwd, outcome.path) || outcome.path;
  const rss = footer.worker_peak_rss;
  const facts = [
    `${footer.events.toLocaleString('en-US')} events`,
    `${formatBytes(outcome.fileBytes)}`,
    `${footer.wall_seconds.toFixed(1)} s`,
    ...(rss === null ? [] : [`${formatBytes(rss)} of host memory`]),
  ];
  output.product(`${path.startsWith('..') ? outcome.path : path}: ${facts.join(', ')}`);
  output.product(
    `live storages peaked at ${formatBytes(livePeak)}; memtracker report ${path} tells where and what`,
  );
  if (uncovered.length === 0) return;
  const assumed = uncovered.filter((event) => event.assumption !== '').length;
  output.product(
    `${uncovered.length} uncovered, ${assumed} of them with a stated assumption; the report lists them`,
  );
}

function outcomeJson(outcome: TraceOutcome): unknown {
  return {
    schema: 'memtracker.trace_outcome/1',
    path: outcome.path,
    exit_status: outcome.exitStatus,
    file_bytes: outcome.fileBytes,
    live_peak_bytes: outcome.livePeak,
    problems: outcome.problems,
    uncovered: outcome.uncovered,
    fatal: outcome.fatal ?? null,
    ...outcome.footer,
  };
}
