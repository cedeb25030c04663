// The header of a captured run, as python/memtracker_sidecar/capture/recording.py writes it. Sizes are bytes, times microseconds
// since 1970; null is "not known".

import { z } from 'zod';

const count = z.int().nonnegative();
const scalar = z.union([z.string(), z.number(), z.boolean(), z.null()]);

export const readingSchema = z.object({
  requested: count.nullable(),
  allocated: count,
  active: count,
  reserved: count,
  /** Calls that the allocator had served: places the reading in the history. */
  allocs: count,
  frees: count,
  frees_completed: count,
  driver_free: count.nullable(),
  driver_total: count.nullable(),
  process_used: count.nullable(),
  device_used: count.nullable(),
  nccl: z.record(z.string(), z.record(z.string(), z.int())).nullable(),
});
export type CaptureReading = z.infer<typeof readingSchema>;

const owners = z.array(z.tuple([count, z.string(), z.string()]));

export const markSchema = z.discriminatedUnion('kind', [
  z.object({
    kind: z.literal('begin'),
    time: count,
    phase: count,
    name: z.string(),
    labels: z.record(z.string(), scalar),
    reading: readingSchema.nullable(),
  }),
  z.object({
    kind: z.literal('end'),
    time: count,
    phase: count,
    reading: readingSchema.nullable(),
    owners,
    exception: z.string().nullable(),
  }),
]);
export type CaptureMark = z.infer<typeof markSchema>;

export const captureHeaderSchema = z.object({
  memtracker: z.string(),
  framework: z.string(),
  purpose: z.enum(['calibration', 'validation']),
  created: z.string(),
  rank: count,
  world: z.int().positive(),
  local_rank: count,
  gpus_per_node: z.int().positive(),
  argv: z.array(z.string()),
  cwd: z.string(),
  device: count,
  gpu: z.object({
    name: z.string(),
    capability: z.tuple([z.int(), z.int()]),
    total_memory: z.int().positive(),
    multi_processor_count: z.int().positive(),
  }),
  versions: z.object({
    python: z.string(),
    torch: z.string(),
    cuda: z.string().nullable(),
    nccl: z.string().nullable(),
    driver: z.string().nullable(),
  }),
  environment: z.record(z.string(), z.string()),
  history: z.object({ max_entries: count.nullable(), stacks: z.string() }),
  /** Flags that changed what was measured: synchronize, empty_cache, reset_peak. */
  disturbed_by: z.array(z.string()),
  marks: z.array(markSchema),
  end: readingSchema,
  ended: z.object({
    how: z.enum(['done', 'exception', 'out_of_memory', 'terminated']),
    error: z.string(),
  }),
  facts: z.record(z.string(), z.unknown()),
  communicators: z.array(z.object({ name: z.string(), ranks: z.array(count) })),
});
export type CaptureHeader = z.infer<typeof captureHeaderSchema>;
