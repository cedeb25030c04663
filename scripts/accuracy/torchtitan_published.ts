// TorchTitan's published benchmark: rows of benchmarks/llama3_h100_202412_torchtitan.md, whose "Memory" is
// `reserved_bytes.all.peak`, the largest of all GPUs, read at the 90th iteration (train.py of the commit, torchtitan/metrics.py).
//
// Run them on a checkout of the benchmark's own commit, with the torchao of its versions table on PYTHONPATH for the
// float8 rows. What the table does not say is taken from that checkout:
//
// * Allocator: the default. The checkout has two launchers: `multinode_trainer.slurm` sets no PYTORCH_CUDA_ALLOC_CONF,
//   `run_llama_train.sh` (one node) sets expandable_segments. Which of the one-node rows were started with it is not written
//   anywhere, and agreement with a row is no evidence for it; figures with it are beside, in docs/accuracy-torchtitan.md.
// * Micro-batches: `pipeline_parallel_microbatches` defaults to the pipeline degree (pipelining_utils.py).
// * float8: "Float8" in the table is the three switches that docs/float8.md of the checkout gives for it.
// * Rank: the published figure is the largest of all GPUs. With a pipeline the first stage holds the most micro-batches; with
//   context parallelism ranks differ a little (docs/accuracy-torchtitan.md).
//
// Behaviours of the benchmark's PyTorch (a nightly of 2.6) that change memory are put back by `--option torch=2.6`.

import { z } from 'zod';
import { bytes, GiB } from '../../src/base/bytes.ts';
import type { Truth, TruthCase } from './truth.ts';

const rowSchema = z.object({
  id: z.string(),
  model: z.string(),
  world: z.int(),
  metric: z.string(),
  published_gib: z.number(),
  versions: z.object({ torchtitan: z.string() }),
  sequence: z.int(),
  local_batch: z.int(),
  ac: z.string(),
  parallel: z.object({
    fsdp: z.int(),
    tp: z.int().optional(),
    pp: z.int().optional(),
    cp: z.int().optional(),
  }),
  schedule: z.string().optional(),
  compile: z.boolean().optional(),
  float8: z.boolean().optional(),
  async_tp: z.boolean().optional(),
});
type Row = z.infer<typeof rowSchema>;

const documentSchema = z.object({ source: z.string(), rows: z.array(rowSchema) });

/** Config file of the checkout for each model of the table. */
const CONFIGS: Readonly<Record<string, string>> = {
  'llama3.1-8b': 'train_configs/llama3_8b.toml',
  'llama3.1-70b': 'train_configs/llama3_70b.toml',
  'llama3.1-405b': 'train_configs/llama3_405b.toml',
};

const FLOAT8 = [
  '--float8.enable_float8_linear',
  '--float8.enable_fsdp_float8_all_gather',
  '--float8.precompute_float8_dynamic_scale_for_fsdp',
];

/** Undefined when the document is not of this format. */
export function readTorchTitanPublished(document: unknown): Truth | undefined {
  const probe = z.object({ source: z.string() }).safeParse(document);
  if (!probe.success || !probe.data.source.includes('torchtitan')) return undefined;
  const { source, rows } = documentSchema.parse(document);
  const commits = new Set(rows.map(({ versions }) => versions.torchtitan.split(' ')[0]));
  return {
    format: 'torchtitan published',
    source,
    commit: commits.size === 1 ? [...commits][0] : undefined,
    cases: rows.map(toCase),
  };
}

function toCase(row: Row): TruthCase {
  const config = CONFIGS[row.model];
  if (config === undefined) throw new Error(`${row.id}: unknown model ${row.model}`);
  return {
    id: row.id,
    group: row.model,
    framework: 'torchtitan',
    argv: ['--job.config_file', config, ...argumentsOf(row)],
    env: {},
    gpu: 'h100-96gb',
    world: row.world,
    rank: 0,
    gpusPerNode: 8,
    steps: 3,
    options: { torch: 2.6 },
    measures: [
      {
        quantity: 'peak_reserved',
        when: 'last',
        bytes: bytes(Math.round(row.published_gib * GiB)),
      },
    ],
    measured: '2024-12',
  };
}

function argumentsOf(row: Row): string[] {
  const { tp = 1, pp = 1, cp = 1 } = row.parallel;
  const [mode] = row.ac.split(' ');
  const argv = [
    ...['--training.batch_size', String(row.local_batch)],
    ...['--training.seq_len', String(row.sequence)],
    ...['--activation_checkpoint.mode', mode],
    ...['--training.tensor_parallel_degree', String(tp)],
    ...['--experimental.context_parallel_degree', String(cp)],
    ...['--experimental.pipeline_parallel_degree', String(pp)],
    ...['--metrics.log_freq', '1'],
  ];
  if (pp > 1 && row.schedule !== undefined) {
    argv.push('--experimental.pipeline_parallel_schedule', row.schedule.replaceAll(' ', ''));
  }
  if (row.compile) argv.push('--training.compile');
  if (row.float8) argv.push(...FLOAT8);
  if (row.async_tp) argv.push('--experimental.enable_async_tensor_parallel');
  return argv;
}
