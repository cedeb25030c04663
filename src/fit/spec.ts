// The fit specification: one job, and the variations of it that are asked about. Published as docs/fit-spec.schema.json.

import { z } from 'zod';
import { formatBytes, parseBytes } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import { componentSchema } from '../external/component.ts';

const scalar = z.union([z.string(), z.number(), z.boolean()]);
export type SpecScalar = z.infer<typeof scalar>;

/** Bytes, or a share of the capacity in percent. */
export const marginSchema = z
  .union([z.int().nonnegative(), z.string()])
  .transform((raw, context): { readonly bytes: number } | { readonly percent: number } => {
    if (typeof raw === 'number') return { bytes: raw };
    const percent = /^\s*(\d+(?:\.\d+)?)\s*%\s*$/.exec(raw);
    if (percent !== null) {
      const value = Number(percent[1]);
      if (value < 100) return { percent: value };
    } else {
      try {
        return { bytes: parseBytes(raw) };
      } catch {
        // Falls through to the message that names both forms.
      }
    }
    context.addIssue(
      `must be a size (2GiB) or a share of the capacity below 100% (5%), got "${raw}"`,
    );
    return z.NEVER;
  });
export type Margin = z.infer<typeof marginSchema>;

const worldSchema = z
  .union([
    z.int().positive(),
    z.strictObject({ nodes: z.int().positive(), gpus_per_node: z.int().positive() }),
  ])
  .describe('Number of ranks, or nodes and GPUs per node. A number means nodes of up to 8 GPUs.');

const ncclSchema = z.strictObject({
  version: z.string().optional(),
  topology: z.string().optional().describe('A preset name, or the path of a topology file.'),
});

/**
 * What the job does in the run that is judged. `first_step` ends the replay after the first optimizer step; the others are
 * the framework's own switches, named in its manifest.
 */
export const SCENARIOS = [
  'steady',
  'first_step',
  'evaluation',
  'checkpoint_save',
  'resume',
] as const;

export const specSchema = z
  .strictObject({
    version: z.literal(1).default(1),
    framework: z.enum(['torchtitan', 'megatron', 'script']).or(z.string().min(1)),
    checkout: z.string().optional().describe('Folder of the framework; relative to the spec file.'),
    arguments: z
      .union([z.array(scalar), z.string()])
      .default([])
      .describe(
        "The framework's own arguments; for framework script: the script and its arguments.",
      ),
    world: worldSchema,
    gpu: z
      .string()
      .default('h100-80gb')
      .describe('A named GPU (memtracker gpus lists them) or bytes.'),
    steps: z.int().min(2, 'at least 2: optimizer state arrives in the first step').default(2),
    ranks: z
      .union([z.enum(['auto', 'all']), z.array(z.int().nonnegative()).min(1)])
      .default('auto')
      .describe('auto: one rank for each role that can differ.'),
    margin: marginSchema
      .default({ bytes: 0 })
      .describe('Bytes (2GiB) or percent of the capacity to leave free.'),
    allocator: z.string().default('').describe('PYTORCH_ALLOC_CONF of the real job.'),
    nccl: ncclSchema.default({}),
    external: z.array(componentSchema).default([]),
    profile: z
      .string()
      .optional()
      .describe(
        'Calibration profile for what is outside the allocator: its name, or a file (memtracker calibrate makes one).',
      ),
    options: z.record(z.string(), scalar).default({}).describe('Adapter options: routing, data, …'),
    environment: z.record(z.string(), z.string()).default({}),
    scenarios: z.array(z.enum(SCENARIOS)).min(1).default(['steady']),
    matrix: z
      .record(z.string(), z.array(scalar.nullable()).min(1))
      .default({})
      .describe(
        'Key: gpu, world, nodes, allocator, steps, margin, nccl.version, nccl.topology, options.NAME, env.NAME, or an argument ' +
          'of the framework (training.local_batch_size, --micro-batch-size). null leaves the argument out.',
      ),
    exclude: z
      .array(z.record(z.string(), scalar.nullable()))
      .default([])
      .describe('Combinations of the matrix that are left out.'),
  })
  .describe('memtracker fit specification, version 1');

export type FitSpec = z.output<typeof specSchema>;

export interface World {
  readonly ranks: number;
  readonly gpusPerNode: number;
}

/** The usual node holds eight GPUs; fewer ranks than that are one node. */
export function worldOf(world: FitSpec['world']): World {
  if (typeof world === 'number') return { ranks: world, gpusPerNode: Math.min(world, 8) };
  return { ranks: world.nodes * world.gpus_per_node, gpusPerNode: world.gpus_per_node };
}

/** Capacity minus this many bytes is what may be used. @throws UserError for a margin that leaves nothing. */
export function marginBytes(margin: Margin, capacity: number): number {
  const left = 'bytes' in margin ? margin.bytes : Math.ceil((capacity * margin.percent) / 100);
  if (left < capacity) return left;
  throw new UserError(
    'MARGIN',
    `a margin of ${formatBytes(left)} leaves nothing of a GPU of ${formatBytes(capacity)}; choose a smaller one`,
  );
}
