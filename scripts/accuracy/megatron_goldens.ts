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

/** A step that fp16 skips comes first, so that the state and the peak with it need one more. */
const STEPS = { usual: 2, lossScaling: 3 } as const;

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
  const peak = peaks.find(({ when }) => when === 'last');
  return {
    id: golden.id,
    group: `${golden.model}, ${platform.title}`,
    framework: 'megatron',
    argv: [script, ...argvOf(golden.args)],
    env: Object.fromEntries(
      Object.entries(golden.env_vars).map(([name, value]) => [name, String(value)]),
    ),
    gpu: platform.gpu,
    world,
    rank: world - 1,
    gpusPerNode: platform.node,
    steps: golden.args['--fp16'] === true ? STEPS.lossScaling : STEPS.usual,
    options: {},
    measures: [...peaks, ...measuresOf(golden.measured.allocated, 'allocated')],
    measured: golden.golden_date.slice(0, 7),
    ...(peak !== undefined && {
      recorded: {
        file: `tests/functional_tests/test_cases/${golden.model}/${golden.case}/golden_values_${golden.environment}_${golden.platform}.json`,
        figure: peak.bytes,
        environment: golden.environment,
      },
    }),
  };
}

/**
 * The default cuBLAS workspace of PyTorch on Blackwell became 32 MiB with pytorch/pytorch#175344, merged in February 2026; the images
 * before 26.04 have what this setting says (aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize).
 */
const OLDER_BLACKWELL_DEFAULT = { before: '26.04', setting: ':4096:2:16:8' } as const;

function asRecorded(one: TruthCase, { date, image }: Recording): TruthCase {
  const older = one.gpu === GB200 && image !== null && image < OLDER_BLACKWELL_DEFAULT.before;
  return {
    ...one,
    measured: date.slice(0, 7),
    ...(image !== null && { software: `NGC ${image}` }),
    env: {
      ...(older && { CUBLAS_WORKSPACE_CONFIG: OLDER_BLACKWELL_DEFAULT.setting }),
      ...one.env,
    },
  };
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
    return [filled.replace(/^"|"$/g, '')];
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
