// Megatron-LM's functional tests: their arguments and the memory that their last rank reported (golden values).

import { z } from 'zod';
import { bytes } from '../../src/base/bytes.ts';
import type { Recording } from './recorded.ts';
import type { Measure, Truth, TruthCase } from './truth.ts';

const byIteration = z.record(z.string(), z.number());
const argument = z.union([z.string(), z.number(), z.boolean(), z.null()]);

const caseSchema = z.object({
  id: z.string(),
  model: z.string(),
  case: z.string(),
  platform: z.string(),
  environment: z.string(),
  golden_date: z.string(),
  recipe: z
    .object({
      nodes: z.number().nullable(),
      gpus: z.number().nullable(),
      script: z.string().nullable(),
    })
    .nullable(),
  env_vars: z.record(z.string(), z.union([z.string(), z.number()])),
  args: z.record(z.string(), argument),
  measured: z.object({ max_allocated: byIteration, allocated: byIteration }),
});

const documentSchema = z.object({
  source: z.string(),
  checkout_commit: z.string(),
  cases: z.array(caseSchema),
});

type GoldenCase = z.infer<typeof caseSchema>;

/** Platform of a golden file -> our GPU, GPUs of a node, and a name for groups. */
const GB200 = 'gb200-186gb';
const PLATFORMS: Readonly<Record<string, { gpu: string; node: number; title: string }>> = {
  dgx_h100: { gpu: 'h100-80gb', node: 8, title: 'H100' },
  dgx_a100: { gpu: 'a100-80gb', node: 8, title: 'A100' },
  dgx_gb200: { gpu: GB200, node: 4, title: 'GB200' },
};

/** Script of a model where the recipe is not known. */
const SCRIPTS: Readonly<Record<string, string>> = { bert: 'examples/bert/pretrain_bert.py' };

/** One more where a step that fp16 skips comes first, and where a step with all state has to follow an evaluation. */
const STEPS = { usual: 2, longer: 3 } as const;

/** Undefined when the document is not of this format. */
export function readMegatronGoldens(document: unknown): Truth | undefined {
  const probe = z.object({ source: z.string() }).safeParse(document);
  if (!probe.success || !probe.data.source.includes('Megatron-LM')) return undefined;
  const { source, checkout_commit, cases } = documentSchema.parse(document);
  return {
    format: 'megatron goldens',
    source,
    commit: checkout_commit,
    cases: cases.map(toCase),
    asRecorded,
    withArguments,
  };
}

function toCase(golden: GoldenCase): TruthCase {
  const platform = PLATFORMS[golden.platform];
  if (platform === undefined) throw new Error(`${golden.id}: unknown platform ${golden.platform}`);
  const recipe = golden.recipe;
  // Where a case has no recipe: eight GPUs, or four when its name says one node of a GB200 system.
  const oneNode = golden.case.includes('1node') || golden.case.includes('1N4G');
  const world =
    recipe?.nodes && recipe.gpus
      ? recipe.nodes * recipe.gpus
      : platform.node === 4 && oneNode
        ? 4
        : releaseWorld(golden);
  const script = recipe?.script ?? SCRIPTS[golden.model] ?? 'pretrain_gpt.py';
  const peaks = measuresOf(golden.measured.max_allocated, 'peak_allocated');
  // With fp16 the second step may still be one that is skipped.
  const second = golden.measured.max_allocated['2'];
  const evaluated = wasEvaluated(golden);
  if (second !== undefined && golden.args['--fp16'] !== true && !evaluated) {
    peaks.push({ quantity: 'peak_allocated', when: 'second', bytes: bytes(second) });
  }
  const peak = peaks.find(({ when }) => when === 'last');
  const folder = `tests/functional_tests/test_cases/${golden.model}/${golden.case}`;
  return {
    id: golden.id,
    group: `${golden.model}, ${platform.title}`,
    framework: 'megatron',
    argv: [script, ...argvOf(golden.args)],
    env: environmentOf(golden.env_vars),
    gpu: platform.gpu,
    world,
    rank: world - 1,
    gpusPerNode: platform.node,
    steps: golden.args['--fp16'] === true || evaluated ? STEPS.longer : STEPS.usual,
    options: evaluated ? { evaluation: 1 } : {},
    measures: [...peaks, ...measuresOf(golden.measured.allocated, 'allocated')],
    measured: golden.golden_date.slice(0, 7),
    ...(peak !== undefined && {
      recorded: {
        file: `${folder}/golden_values_${golden.environment}_${golden.platform}.json`,
        arguments: 'model_config.yaml',
        figure: peak.bytes,
        folder: 'tests/functional_tests',
        environment: golden.environment,
        gpu: golden.platform.replace('dgx_', ''),
      },
    }),
  };
}

/**
 * The default cuBLAS workspace of PyTorch on Blackwell became 32 MiB with pytorch/pytorch#175344, merged in February 2026; the images
 * before 26.04 have what this setting says (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize).
 */
const OLDER_BLACKWELL_DEFAULT = { before: '26.04', setting: ':4096:2:16:8' } as const;

/**
 * Where deterministic attention leaves only TransformerEngine's unfused backend: with its releases up to v1.2.1 (January 2024), off
 * compute capability 9.0, for sequences of more than 512 tokens (transformer_engine/pytorch/attention.py, DotProductAttention:
 * flash-attention 2 is switched off when NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, and so is cuDNN's F16_arbitrary_seqlen). The
 * long-term image 24.01 has the TransformerEngine of its base (docker/common/install_source_wheels.sh installs one for the
 * development image only), which is taken to be a release of its month or before, with flash-attention 2 of July 2023 or later.
 */
const UNFUSED_WHEN_DETERMINISTIC = {
  image: '24.01',
  longerThan: 512,
  gpus: ['a100-80gb'],
} as const;

function asRecorded(one: TruthCase, { date, image }: Recording): TruthCase {
  const older = one.gpu === GB200 && image !== null && image < OLDER_BLACKWELL_DEFAULT.before;
  return {
    ...one,
    measured: date.slice(0, 7),
    ...(image !== null && { software: `NGC ${image}` }),
    argv: [...one.argv, ...(isUnfused(one, image) ? ['--attention-backend', 'unfused'] : [])],
    env: {
      ...(older && { CUBLAS_WORKSPACE_CONFIG: OLDER_BLACKWELL_DEFAULT.setting }),
      ...one.env,
    },
  };
}

function isUnfused({ argv, env, gpu }: TruthCase, image: string | null): boolean {
  const after = (name: string) => argv[argv.indexOf(name) + 1];
  const { longerThan, gpus } = UNFUSED_WHEN_DETERMINISTIC;
  return (
    image === UNFUSED_WHEN_DETERMINISTIC.image &&
    env.NVTE_ALLOW_NONDETERMINISTIC_ALGO === '0' &&
    !argv.includes('--attention-backend') &&
    after('--transformer-impl') !== 'local' &&
    gpus.some((name) => name === gpu) &&
    Number(after('--seq-length')) > longerThan
  );
}

/** Whether the last figure is of a step after the first evaluation. Megatron's defaults: every 1000 steps, 100 iterations. */
function wasEvaluated({ args, measured }: GoldenCase): boolean {
  const last = Math.max(...Object.keys(measured.max_allocated).map(Number));
  return last > Number(args['--eval-interval'] ?? 1000) && Number(args['--eval-iters'] ?? 100) > 0;
}

const argumentsSchema = z.object({
  ENV_VARS: caseSchema.shape.env_vars.nullish(),
  MODEL_ARGS: caseSchema.shape.args,
});

function withArguments(one: TruthCase, document: unknown): TruthCase {
  const parsed = argumentsSchema.safeParse(document);
  if (!parsed.success) return one;
  const [script] = one.argv;
  return {
    ...one,
    argv: [script, ...argvOf(parsed.data.MODEL_ARGS)],
    env: { ...one.env, ...environmentOf(parsed.data.ENV_VARS ?? {}) },
  };
}

function environmentOf(variables: GoldenCase['env_vars']): Record<string, string> {
  return Object.fromEntries(
    Object.entries(variables).map(([name, value]) => [name, String(value)]),
  );
}

/** Eight GPUs unless the parallel sizes need more. */
function releaseWorld(golden: GoldenCase): number {
  const size = (name: string) => Number(golden.args[name] ?? 1);
  const model =
    size('--tensor-model-parallel-size') *
    size('--pipeline-model-parallel-size') *
    size('--context-parallel-size');
  return Math.max(8, model);
}

/** The command line that the test harness makes of a YAML mapping. */
export function argvOf(args: Readonly<Record<string, string | number | boolean | null>>): string[] {
  const argv: string[] = [];
  for (const [name, value] of Object.entries(args)) {
    if (value === true || value === 'true') argv.push(name);
    else if (value !== false && value !== null) argv.push(name, ...valuesOf(name, String(value)));
  }
  return argv;
}

function valuesOf(name: string, value: string): string[] {
  const filled = value.replace(/\$\{\w+\}/g, '/nonexistent');
  const list = /^\[(.*)\]$/.exec(filled);
  // A layout or a pattern (`(E|t*3)|…`) is one argument; other values are words.
  if (list === null && name !== '--data-path' && /[()|*]/.test(filled)) {
    return [filled.replace(/^"|"$/g, '').replaceAll('\\', '')]; // the test harness's shell takes backslashes away
  }
  return (list?.[1] ?? filled).split(/\s+/).filter((word) => word !== '');
}

function measuresOf(
  values: Readonly<Record<string, number>>,
  quantity: 'allocated' | 'peak_allocated',
): Measure[] {
  const steps = Object.keys(values).sort((a, b) => Number(a) - Number(b));
  const first = steps[0];
  const last = steps.at(-1);
  if (first === undefined || last === undefined) return [];
  const measures: Measure[] = [{ quantity, when: 'last', bytes: bytes(values[last]) }];
  if (first === '1') measures.unshift({ quantity, when: 'first', bytes: bytes(values[first]) });
  return measures;
}
