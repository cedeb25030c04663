import { mkdir, mkdtemp } from 'node:fs/promises';
import { dirname, join, resolve } from 'node:path';
import { ExitStatus, UserError } from '../../base/errors.ts';
import type { Executor } from '../../fit/executor.ts';
import { LocalExecutor, WORKER_BYTES } from '../../fit/executors/local.ts';
import { RayExecutor } from '../../fit/executors/ray.ts';
import { SlurmExecutor } from '../../fit/executors/slurm.ts';
import { type FitOutcome, FitRun } from '../../fit/run.ts';
import { maximize, minimize, type SearchRange } from '../../fit/search.ts';
import { type FitSpec, specSchema } from '../../fit/spec.ts';
import { readSpec } from '../../fit/spec_file.ts';
import { specTemplate, TEMPLATE_NAMES } from '../../fit/spec_template.ts';
import { suggest } from '../../fit/suggestions.ts';
import { checkTarget, targetOf } from '../../fit/target.ts';
import { TraceCache, traceCacheFolder } from '../../fit/trace_cache.ts';
import { checkUnit } from '../../fit/trace_unit.ts';
import { expand, labelOf, type Variation, vary } from '../../fit/variation.ts';
import { UnitKeys, unitOf } from '../../fit/work_unit.ts';
import {
  type FitReport,
  type FitSearchReport,
  overallVerdict,
} from '../../report/fit/fit_report.ts';
import { fitJson, fitJunit, fitMarkdown } from '../../report/fit/forms.ts';
import { fitText } from '../../report/fit/text.ts';
import { findAdapter } from '../../sidecar/adapter.ts';
import { ensureEnvironment } from '../../sidecar/environment.ts';
import { packageFolder } from '../../sidecar/package_folder.ts';
import { programVersion } from '../../sidecar/program_version.ts';
import { installedDistributions } from '../../sidecar/python.ts';
import { decidingEnvironment } from '../../sidecar/source_identity.ts';
import { readTrace } from '../../trace/reader.ts';
import { type CommandContext, defineCommand } from '../command.ts';
import { FitProgress } from '../fit_progress.ts';
import { choice, flag, integer, list, passthrough, positional, text } from '../option.ts';
import { writeProduct } from '../product_file.ts';

interface FitConfig {
  readonly spec: string | undefined;
  readonly init: string | undefined;
  readonly framework: string | undefined;
  readonly checkout: string | undefined;
  readonly world: number | undefined;
  readonly gpu: string | undefined;
  readonly ranks: string | undefined;
  readonly margin: string | undefined;
  readonly allocConf: string | undefined;
  readonly nccl: string | undefined;
  readonly topology: string | undefined;
  readonly vary: readonly string[];
  readonly maximize: string | undefined;
  readonly minimize: string | undefined;
  readonly suggest: boolean;
  readonly executor: 'local' | 'slurm' | 'ray';
  readonly jobs: number | undefined;
  readonly sbatch: readonly string[];
  readonly shared: string | undefined;
  readonly rayAddress: string | undefined;
  readonly ray: string;
  readonly json: boolean;
  readonly markdown: boolean;
  readonly junit: string | undefined;
  readonly argv: readonly string[];
}

export const fit = defineCommand<FitConfig>({
  name: 'fit',
  summary: 'Say whether a job fits, by how much, and what would make it fit',
  description:
    'Judges every variation of a specification (or one job from flags alone): `fits`, `does not fit`, or `unproven` with what is missing. Exit status: 0 all fit, 1 something does not, 2 unproven, 3 usage or environment. Traces are kept by content: asking again about another GPU, allocator setting or NCCL costs no new run.',
  options: {
    spec: positional(
      'SPEC.yaml',
      'the specification; without it the job is given by flags',
    ).optional(),
    init: text(
      'FRAMEWORK',
      'write a commented specification to stdout: torchtitan, megatron, script',
    ).optional(),
    framework: text('NAME', 'as in `memtracker trace`').optional(),
    checkout: text('DIR', 'folder of the framework checkout').optional(),
    world: integer('N', 'ranks of the job', { minimum: 1 }).optional(),
    gpu: text('NAME|BYTES', 'the GPU; memtracker gpus lists the names').optional(),
    ranks: text('auto|all|N,N', 'ranks to look at', {
      defaultText: 'auto: one for each role that can differ',
    }).optional(),
    margin: text('SIZE|PERCENT', 'memory to leave free').optional(),
    allocConf: text('CONF', 'PYTORCH_ALLOC_CONF of the real job').optional(),
    nccl: text('VERSION', 'NCCL version of the real job').optional(),
    topology: text('NAME|FILE', 'a topology preset or file').optional(),
    vary: list('KEY=V1,V2', 'one more row of the matrix'),
    maximize: text(
      'KEY[:FROM..TO[:STEP]]',
      'search the largest value that fits; default 1..64',
    ).optional(),
    minimize: text(
      'KEY[:FROM..TO[:STEP]]',
      'search the smallest value that fits, for example nodes',
    ).optional(),
    suggest: flag('try the single changes that may make it fit'),
    executor: choice(['local', 'slurm', 'ray'], 'where traces are made').default('local'),
    jobs: integer('N', 'traces at once', {
      minimum: 1,
      defaultText: 'what cores and memory allow',
    }).optional(),
    sbatch: list('ARGUMENT', 'more arguments for sbatch (--sbatch=--partition=cpu)'),
    shared: text('DIR', 'folder that the nodes share, for units and results', {
      defaultText: 'in the trace cache',
    }).optional(),
    rayAddress: text('URL', 'address of the Ray dashboard', { env: 'RAY_ADDRESS' }).optional(),
    ray: text('PATH', 'the ray executable').default('ray'),
    json: flag('print JSON'),
    markdown: flag('print Markdown, for a pull request'),
    junit: text('FILE', 'also write JUnit XML').optional(),
    argv: passthrough(
      'ARGUMENTS',
      'the arguments of the framework, when there is no specification',
    ),
  },
  examples: [
    { command: 'fit --init torchtitan > fit.yaml', description: 'a specification to start from' },
    { command: 'fit fit.yaml', description: 'judge every variation' },
    { command: 'fit fit.yaml --suggest', description: 'and what would make it fit' },
    {
      command:
        'fit --framework torchtitan --checkout ~/torchtitan --world 8 --gpu h100-80gb --maximize training.num_tokens_per_microbatch_per_dp_rank:8192..65536:8192 -- --module llama3 --config llama3_8b',
      description: 'the largest batch, from flags alone',
    },
  ],
  async run(config, context) {
    if (config.init !== undefined) return printTemplate(config.init, context);
    const started = Date.now();
    const { spec, folder } = await specificationOf(config, context.cwd);
    const variations = expand(spec, folder);
    // What is wrong whatever runs it is said before anything is set up.
    for (const variation of variations) {
      checkUnit(unitOf(variation, 0));
      await checkTarget(variation, context.env);
    }
    if (config.maximize !== undefined && config.minimize !== undefined) {
      throw new UserError('USAGE', '--maximize and --minimize cannot be used together');
    }
    const run = await fitRun(config, context);
    const progress = context.output;
    let outcomes: FitOutcome[] = [];
    let search: FitSearchReport | null = null;
    const suggestions = [];
    try {
      if (config.maximize !== undefined || config.minimize !== undefined) {
        if (variations.length > 1) {
          context.output.warn(
            `a search is about one job: ${labelOf(variations[0])}, the first of ${variations.length} variations`,
          );
        }
        [search, outcomes] = await searchFor(config, variations[0], run, context);
      } else {
        outcomes = await run.judge(variations);
      }
      if (config.suggest) {
        const unfit = outcomes.find((outcome) => outcome.judgement.verdict !== 'fits');
        if (unfit !== undefined) {
          const path = unfit.roles[0]?.trace;
          const facts = path ? (await readTrace(path)).run.get('config') : undefined;
          const { manifest } = findAdapter(unfit.variation.framework);
          suggestions.push(...(await suggest(run, unfit, manifest.suggestions, facts)));
        }
      }
    } finally {
      progress.endProgress();
    }
    const report: FitReport = {
      title: `fit ${config.spec ?? spec.framework}`,
      outcomes,
      search,
      suggestions,
      traced: run.traced,
      seconds: (Date.now() - started) / 1000,
    };
    if (config.junit !== undefined) {
      await writeProduct(resolve(context.cwd, config.junit), fitJunit(report));
    }
    if (config.json) context.output.json(fitJson(report));
    else if (config.markdown) context.output.product(fitMarkdown(report));
    else context.output.product(fitText(report, context.output.colors, context.output.width));
    if (context.signal.aborted) return ExitStatus.interrupted;
    return exitStatusOf(report);
  },
});

function printTemplate(framework: string, { output }: CommandContext): ExitStatus {
  const template = specTemplate(framework);
  if (template === undefined) {
    throw new UserError('TEMPLATE', `--init ${framework}: there are ${TEMPLATE_NAMES.join(', ')}`);
  }
  output.product(template);
  return ExitStatus.done;
}

function exitStatusOf(report: FitReport): ExitStatus {
  // A search is answered by a value that fits, whatever its probes said.
  if (report.search !== null && report.search.result.best !== null) return ExitStatus.done;
  switch (overallVerdict(report)) {
    case 'fits':
      return ExitStatus.done;
    case 'does_not_fit':
      return ExitStatus.doesNotFit;
    case 'unproven':
      return ExitStatus.uncovered;
  }
}

/** The specification of the file or of the flags; flags win over the file. */
async function specificationOf(
  config: FitConfig,
  cwd: string,
): Promise<{ spec: FitSpec; folder: string }> {
  const given = config.spec === undefined ? undefined : await readSpec(resolve(cwd, config.spec));
  if (given === undefined && config.framework === undefined) {
    throw new UserError(
      'USAGE',
      'fit needs a specification or --framework; `memtracker fit --init torchtitan` writes one to start from',
    );
  }
  const flags = {
    ...(config.framework !== undefined && { framework: config.framework }),
    ...(config.checkout !== undefined && { checkout: resolve(cwd, config.checkout) }),
    ...(config.world !== undefined && { world: config.world }),
    ...(config.gpu !== undefined && { gpu: config.gpu }),
    ...(config.ranks !== undefined && { ranks: ranksOf(config.ranks) }),
    ...(config.margin !== undefined && { margin: config.margin }),
    ...(config.allocConf !== undefined && { allocator: config.allocConf }),
    ...((config.nccl !== undefined || config.topology !== undefined) && {
      nccl: {
        ...given?.spec.nccl,
        ...(config.nccl !== undefined && { version: config.nccl }),
        ...(config.topology !== undefined && { topology: config.topology }),
      },
    }),
    ...(config.argv.length > 0 && { arguments: [...config.argv] }),
    ...(config.vary.length > 0 && {
      matrix: { ...given?.spec.matrix, ...Object.fromEntries(config.vary.map(matrixRow)) },
    }),
  };
  // What came out of the file is in its final form already; margin is the one field that parsing changes.
  const base = given === undefined ? {} : { ...given.spec, margin: undefined };
  const parsed = specSchema.safeParse({ ...base, ...flags });
  if (!parsed.success) {
    const faults = parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`);
    throw new UserError('SPEC_INVALID', faults.join('\n'));
  }
  const spec =
    given !== undefined && config.margin === undefined
      ? { ...parsed.data, margin: given.spec.margin }
      : parsed.data;
  return { spec, folder: given?.folder ?? cwd };
}

function ranksOf(text: string): 'auto' | 'all' | number[] {
  if (text === 'auto' || text === 'all') return text;
  const ranks = text.split(',').map(Number);
  if (ranks.some((rank) => !Number.isInteger(rank) || rank < 0)) {
    throw new UserError('USAGE', `--ranks ${text}: write auto, all, or rank numbers like 0,7`);
  }
  return ranks;
}

function matrixRow(text: string): [string, (string | number | boolean)[]] {
  const at = text.indexOf('=');
  if (at <= 0) throw new UserError('USAGE', `--vary ${text}: write KEY=VALUE,VALUE`);
  const key = text.slice(0, at);
  const values = text
    .slice(at + 1)
    .split(',')
    .map((value) => {
      if (value === 'true' || value === 'false') return value === 'true';
      // What is not written as the number prints keeps its text: 1e-4, 007. A version is never a number.
      const number = Number(value);
      const isNumber = Number.isFinite(number) && String(number) === value;
      return isNumber && key !== 'nccl.version' ? number : value;
    });
  return [key, values];
}

async function fitRun(config: FitConfig, context: CommandContext): Promise<FitRun> {
  const { env, signal, output } = context;
  const cache = new TraceCache(traceCacheFolder(env));
  const environment = await ensureEnvironment({
    env,
    torchIndex: undefined,
    signal,
    onProgress: (line, kind) => output.progress(line, { force: kind === 'stage' }),
  });
  output.endProgress();
  // A managed environment has what the locks of this version say.
  const packages =
    environment.folder === null ? await installedDistributions(environment.python, env) : '';
  const progress = new FitProgress(output);
  return new FitRun({
    executor: await executorOf(config, context, cache, {
      environment,
      env,
      memtrackerVersion: programVersion(),
      onSetup: (line, kind) => output.progress(line, { force: kind === 'stage' }),
    }),
    cache,
    keys: new UnitKeys(
      packageFolder('.'),
      `${programVersion()} torch ${environment.torch} Python ${environment.pythonVersion} ${packages}`,
    ),
    env,
    signal,
    target: (variation) => targetOf(variation, env),
    onProgress: (request, state) => progress.see(request, state),
    onWarning: (sentence) => output.warn(sentence),
  });
}

async function executorOf(
  config: FitConfig,
  { cwd, env }: CommandContext,
  cache: TraceCache,
  trace: ConstructorParameters<typeof LocalExecutor>[0]['trace'],
): Promise<Executor> {
  if (config.executor === 'local') return new LocalExecutor({ cache, trace, jobs: config.jobs });
  const shared =
    config.shared === undefined ? join(cache.folder, 'units') : resolve(cwd, config.shared);
  await mkdir(shared, { recursive: true });
  const folder = await mkdtemp(join(shared, 'fit-'));
  const command = [process.execPath, ...process.execArgv, process.argv[1]];
  if (config.executor === 'slurm') {
    return new SlurmExecutor({
      folder,
      command,
      sbatch: config.sbatch,
      limit: config.jobs ?? 0,
      pollMilliseconds: 1000,
    });
  }
  return new RayExecutor({
    folder,
    address: config.rayAddress,
    ray: config.ray,
    environment: {
      ...decidingEnvironment(env),
      MEMTRACKER_CACHE: dirname(cache.folder),
      ...(env.MEMTRACKER_PYTHON !== undefined && { MEMTRACKER_PYTHON: env.MEMTRACKER_PYTHON }),
    },
    command,
    cpus: 1,
    memory: WORKER_BYTES,
    limit: config.jobs ?? 64,
    pollMilliseconds: 1000,
  });
}

const RANGE = /^(.+?)(?::(\d+)\.\.(\d+)(?::(\d+))?)?$/;

async function searchFor(
  config: FitConfig,
  base: Variation,
  run: FitRun,
  { output }: CommandContext,
): Promise<[FitSearchReport, FitOutcome[]]> {
  const goal = config.maximize !== undefined ? 'maximize' : 'minimize';
  const match = RANGE.exec(config.maximize ?? config.minimize ?? '');
  if (match === null) throw new UserError('USAGE', `--${goal}: write KEY or KEY:FROM..TO`);
  const [, key, from, to, step] = match;
  // A subcommand's key ends with a colon; within a key it is a range that does not read.
  if (/:./.test(key)) {
    throw new UserError('USAGE', `--${goal} ${key}: write KEY or KEY:FROM..TO, whole numbers`);
  }
  const range: SearchRange = {
    from: from === undefined ? 1 : Number(from),
    to: to === undefined ? 64 : Number(to),
    ...(step !== undefined && { step: Number(step) }),
  };
  const outcomes: FitOutcome[] = [];
  const probe = async (value: number) => {
    const [outcome] = await run.judge([vary(base, key, value)]);
    outcomes.push(outcome);
    output.note(`${key} = ${value}: ${outcome.judgement.verdict.replaceAll('_', ' ')}`);
    return outcome.judgement.verdict;
  };
  const result = await (goal === 'maximize' ? maximize : minimize)(range, probe);
  return [{ goal, key, result }, outcomes];
}
