// The trace file (`.mtrace`): a magic, then records. Written as events arrive, readable up to the last whole record.
//
//   "MTRACE" u8 version u8 0
//   record: u8 kind, u32le length, u32le crc32(payload), payload
//     1 header  msgpack map, see TraceHeader; always the first record
//     2 batch   a wire frame (protocol/codec.ts), raw-deflated
//     3 footer  msgpack map, see TraceFooter; always the last record of a file that was closed
//
// A file without a footer belongs to a run that was killed or is still going on.

import { z } from 'zod';
import { MiB } from '../base/bytes.ts';
import { gpuPropertiesSchema } from '../protocol/worker_spec.ts';

export const MAGIC = Buffer.from('MTRACE');
export const FILE_VERSION = 1;
export const PREAMBLE_BYTES = 8;
export const RECORD_HEAD_BYTES = 9;

export const RecordKind = { header: 1, batch: 2, footer: 3 } as const;

/** Longest record that a reader accepts: far above any batch, far below what would exhaust memory. */
export const MAX_RECORD_BYTES = 256 * MiB;

export const traceHeaderSchema = z.object({
  /** ISO 8601. */
  created: z.string(),
  memtracker: z.string(),
  run: z.string(),
  framework: z.string(),
  checkout: z.string().nullable(),
  argv: z.array(z.string()),
  world: z.int().positive(),
  rank: z.int().nonnegative(),
  gpus_per_node: z.int().positive(),
  gpu: z.object({ id: z.string(), ...gpuPropertiesSchema.shape }),
  steps: z.int().positive(),
  options: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
  /** Observed identity of the source: checkout HEAD, dirty, diff hash, … Filled by the orchestrator. */
  source: z.record(z.string(), z.unknown()),
  /** Allow-listed environment variables that change memory (NCCL_*, PYTORCH_ALLOC_CONF, …). */
  environment: z.record(z.string(), z.string()),
  /** Declared target identity (see docs): training_code, torchao, pytorch, cuda, nccl, container. */
  target: z.record(z.string(), z.unknown()).optional(),
  /** `estimate` from a sidecar, `measured` from a GPU, `scenario` from the library API. */
  origin: z.enum(['estimate', 'measured', 'scenario']),
});
export type TraceHeader = z.infer<typeof traceHeaderSchema>;

export const traceFooterSchema = z.object({
  /** How the worker ended as the orchestrator saw it. */
  status: z.enum(['done', 'failed', 'interrupted', 'killed', 'timed_out']),
  exit_code: z.int().nullable(),
  signal: z.string().nullable(),
  batches: z.int().nonnegative(),
  events: z.int().nonnegative(),
  /** Sentences that say why the trace is not whole; empty when it is. */
  faults: z.array(z.string()),
  /** Last lines of the worker's stderr. */
  stderr_tail: z.string(),
  wall_seconds: z.number(),
  /** Largest resident set of the worker, bytes; null when not measured. */
  worker_peak_rss: z.number().nullable(),
});
export type TraceFooter = z.infer<typeof traceFooterSchema>;
