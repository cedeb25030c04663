// One line of an allocator trace: the input of `memtracker allocator replay` and of tests/oracle/oracle.py, which runs
// the same lines on the real allocator. Streams are small numbers: 0 is the null stream, k the stream whose
// `cudaStream_t` value is k * 4096.

import { z } from 'zod';

const id = z.union([z.int(), z.string()]);
const bytes = z.int().min(0, 'must not be negative');
const stream = z.int().min(0, 'must not be negative').default(0);
const dev = z.int().min(0, 'must not be negative').default(0);
const name = z.string().min(1, 'must not be empty');
const fraction = z.number().min(0, 'must be from 0 to 1').max(1, 'must be from 0 to 1');

const configOp = z.object({
  op: z.literal('config'),
  /** Bytes of each device. */
  capacity: z.int().positive('must be positive'),
  devices: z.int().min(1, 'must be at least 1').default(1),
  /** Bytes in use from the start: the CUDA context. */
  ctx: bytes.default(0),
  /** PYTORCH_ALLOC_CONF. */
  conf: z.string().nullish(),
  /** `set_per_process_memory_fraction` before the first step, on device 0. */
  fraction: fraction.nullish(),
  /** `auto`: events complete when they are recorded; `manual`: by `complete`, `sync` and `sync_all`. */
  events: z.enum(['auto', 'manual']).default('auto'),
  addr: z.literal('bump', 'only "bump" addresses are modelled').default('bump'),
  /** cudaFree and cuMemUnmap wait for all streams. */
  free_syncs: z.union([z.boolean(), z.literal(0), z.literal(1)]).default(false),
});

const stepOp = z.discriminatedUnion('op', [
  z.strictObject({ op: z.literal('alloc'), id, size: bytes, stream, pool: name.nullish(), dev }),
  z.strictObject({ op: z.literal('free'), id }),
  z.strictObject({ op: z.literal('record_stream'), id, stream }),
  z.strictObject({ op: z.literal('complete'), stream }),
  z.strictObject({ op: z.literal('sync'), stream, dev }),
  z.strictObject({ op: z.literal('sync_all'), dev }),
  z.strictObject({ op: z.literal('empty_cache') }),
  z.strictObject({ op: z.literal('set_conf'), conf: z.string() }),
  z.strictObject({ op: z.literal('set_fraction'), fraction, dev }),
  /** Bytes in use on the device by other processes. */
  z.strictObject({ op: z.literal('set_external'), bytes, dev }),
  z.strictObject({
    op: z.literal('pool_new'),
    pool: name,
    no_split: z.boolean().default(false),
    use_on_oom: z.boolean().default(false),
  }),
  z.strictObject({ op: z.literal('pool_del'), pool: name }),
  z.strictObject({ op: z.literal('reset_peak'), dev }),
  z.strictObject({ op: z.literal('reset_accumulated'), dev }),
  /** `pool`: the graph whose pool is shared. */
  z.strictObject({
    op: z.literal('capture_begin'),
    graph: name,
    stream,
    pool: name.nullish(),
    dev,
  }),
  z.strictObject({ op: z.literal('capture_node'), stream }),
  /** `stream` waits for `on`, which is under capture. */
  z.strictObject({ op: z.literal('capture_wait'), stream, on: stream }),
  z.strictObject({ op: z.literal('capture_end'), graph: name }),
  z.strictObject({ op: z.literal('graph_reset'), graph: name }),
]);

export type ConfigOp = z.output<typeof configOp>;
export type StepOp = z.output<typeof stepOp>;
export type BlockId = z.output<typeof id>;

/** What is wrong with a trace, without the place. */
export class TraceError extends Error {
  constructor(problem: string) {
    super(problem);
    this.name = 'TraceError';
  }
}

/** The first line of a trace. @throws TraceError */
export function parseConfigOp(line: string): ConfigOp {
  const value = parseJson(line);
  if (value.op !== 'config') throw new TraceError('the first line must be a "config"');
  return checked(configOp, value);
}

/** Any other line. @throws TraceError */
export function parseStepOp(line: string): StepOp {
  const value = parseJson(line);
  const known = stepOp.options.some((option) => option.shape.op.value === value.op);
  if (!known) {
    const names = stepOp.options.map((option) => option.shape.op.value);
    throw new TraceError(`unknown op ${JSON.stringify(value.op)}; known are ${names.join(', ')}`);
  }
  return checked(stepOp, value);
}

function parseJson(line: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (error) {
    throw new TraceError(`not JSON: ${(error as Error).message}`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new TraceError('not a JSON object');
  }
  return value as Record<string, unknown>;
}

function checked<T>(schema: z.ZodType<T>, value: Record<string, unknown>): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const where = issue.path.length > 0 ? `${issue.path.join('.')} ` : '';
  throw new TraceError(`${String(value.op)}: ${where}${issue.message}`);
}
