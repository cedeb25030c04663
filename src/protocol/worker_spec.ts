// What the orchestrator tells a worker process, as one JSON file in the run's private folder (never on the command line,
// where other users could read it). The Python twin is `memtracker_sidecar/worker_spec.py`.

import { z } from 'zod';

/** Properties of the pretended GPU, named as torch.cuda.get_device_properties names them. Memory in bytes. */
export const gpuPropertiesSchema = z.strictObject({
  name: z.string(),
  capability: z.tuple([z.int(), z.int()]),
  total_memory: z.int().positive(),
  multi_processor_count: z.int().positive(),
});
export type GpuProperties = z.infer<typeof gpuPropertiesSchema>;

export const workerSpecSchema = z.strictObject({
  /** PUSH endpoint: `ipc://…` in a 0700 folder, or `tcp://127.0.0.1:port` with CURVE keys. */
  endpoint: z.string(),
  curve: z
    .strictObject({ server_public: z.string(), public: z.string(), secret: z.string() })
    .nullable(),
  run: z.string().min(8),
  /** Folder of the adapter: holds adapter.py and manifest.json. */
  adapter: z.string(),
  /** The checkout's folder, or null for a plain script. */
  checkout: z.string().nullable(),
  /** The framework's own arguments, as they stood after `--`. */
  argv: z.array(z.string()),
  cwd: z.string(),
  world: z.int().positive(),
  rank: z.int().nonnegative(),
  gpus_per_node: z.int().positive(),
  gpu: gpuPropertiesSchema,
  /** Optimizer steps to run; at least 1. */
  steps: z.int().positive(),
  /** Python frames kept for each allocation; 0 turns stacks off. */
  stack_depth: z.int().nonnegative(),
  /** Adapter and assumption options, from `--option name=value`: routing, data, … */
  options: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
});
export type WorkerSpec = z.infer<typeof workerSpecSchema>;
