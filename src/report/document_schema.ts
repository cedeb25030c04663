// The JSON form of a report, field by field. This schema is the definition: `docs/report.schema.json` is generated from it and a
// test fails when the two differ. Fields are only ever added; a change of meaning raises REPORT_SCHEMA.
//
// Sizes are bytes. A size that is not known is null, never 0. Events are indices into the trace.

import { z } from 'zod';
import { EVIDENCE_ORDER } from '../base/evidence.ts';
import { OWNERS, PASSES } from '../protocol/events.ts';

export const REPORT_SCHEMA = 'memtracker-report/1';

const size = z.number().int().nonnegative();
const knownSize = size.nullable();
const event = z.number().int().nonnegative();
const fields = z.record(z.string(), z.unknown());

const peak = z
  .strictObject({
    bytes: knownSize,
    phase: z.string().nullable().describe('path of the innermost phase, null outside every phase'),
    step: z.number().nullable().describe('the step label of that phase or of one around it'),
    event: event.nullable(),
  })
  .describe('a peak and the instant at which it stood');

const everyKind = <T extends z.ZodType>(value: T) =>
  z.strictObject({
    requested: value,
    allocated: value,
    active: value,
    reserved: value,
    external: value,
    resident: value,
  });

const share = { bytes: size, blocks: z.number().int().nonnegative() };

const frame = z.strictObject({ file: z.string(), line: z.number().int(), function: z.string() });

const moduleShare = z.strictObject({
  name: z.string().describe("cleaned of wrappers; '' is the root"),
  class: z.string(),
  count: z
    .number()
    .int()
    .describe('modules under this name; more than 1 where repetitions are together'),
  own: z.strictObject(share),
  with_children: z.strictObject(share),
  by_pass: z.record(z.enum(PASSES), size),
});

const stackShare = z.strictObject({
  operator: z.string(),
  frames: z.array(frame).describe('innermost first'),
  ...share,
});

const tensor = z.strictObject({
  storage: z.number().int(),
  event,
  bytes: size.describe('asked for'),
  block_bytes: size.describe('of the allocator block'),
  dtype: z.string(),
  layout: z.string(),
  shape: z.array(z.number().int()).nullable(),
  owner: z.enum(OWNERS),
  owner_name: z.string(),
  operator: z.string(),
  module: z.string(),
  pass: z.enum(PASSES),
  stream: z.number().int(),
  phase_born: z.string().nullable(),
  phase_died: z.string().nullable(),
  died_at_event: event.nullable(),
  call_site: frame.nullable(),
});

const atPeak = z
  .strictObject({
    kind: z.string().describe('the kind of memory whose peak is taken apart'),
    event,
    phase: z.string().nullable(),
    requested: size,
    allocated: size,
    owners: z.array(
      z.strictObject({ owner: z.enum(OWNERS), pass: z.enum(PASSES), title: z.string(), ...share }),
    ),
    not_in_trace: size.describe('bytes of allocated that no storage of the trace accounts for'),
    modules: z.array(moduleShare),
    repeated_modules: z.array(moduleShare).describe('layers.* for all layers together'),
    operators: z.array(z.strictObject({ operator: z.string(), ...share })),
    stacks: z.array(stackShare),
    origins: z.array(z.strictObject({ phase: z.string().nullable(), ...share })),
    tensors: z.array(tensor).describe('the largest blocks'),
    tensor_count: z.number().int(),
  })
  .describe('composition of allocated at one instant');

const component = z.strictObject({
  name: z.string(),
  category: z.string(),
  bytes: knownSize,
  low: knownSize,
  high: knownSize,
  evidence: z.enum(EVIDENCE_ORDER as [string, ...string[]]),
  provenance: z.string(),
});

const outOfMemory = z.strictObject({
  event,
  phase: z.string().nullable(),
  step: z.number().nullable(),
  kind: z.enum(['allocator', 'nccl', 'external']),
  requested_bytes: size,
  message: z.string(),
  instant: everyKind(knownSize),
  operator: z.string().describe("'' for what is no tensor: NCCL, a component"),
  module: z.string(),
  frames: z.array(frame).describe('innermost first'),
  live: z
    .array(
      z.strictObject({ owner: z.enum(OWNERS), pass: z.enum(PASSES), title: z.string(), ...share }),
    )
    .describe('blocks just before, by owner'),
  not_in_trace: size.describe('bytes of live blocks that no storage of the trace accounts for'),
  external: z.array(component).describe('just before'),
});

const deviceReport = z.strictObject({
  kind: z.string(),
  index: z.number().int(),
  device_name: z.string(),
  capacity: z
    .strictObject({
      name: z.string(),
      usable_bytes: size,
      evidence: z.enum(EVIDENCE_ORDER as [string, ...string[]]),
      source: z.string(),
    })
    .nullable(),
  peak: everyKind(peak).describe(
    'over the whole run; where out_of_memory is set, what the run needs on a larger device',
  ),
  resident_range: z
    .strictObject({ low: knownSize, high: knownSize })
    .describe('largest resident at the lower and at the upper bound of external memory'),
  percent_of_capacity: z.number().nullable().describe('of peak.resident, else of peak.reserved'),
  out_of_memory: outOfMemory.nullable(),
  final: everyKind(knownSize),
  evidence: z
    .strictObject({
      allocator: z.enum(EVIDENCE_ORDER as [string, ...string[]]),
      external: z.enum(EVIDENCE_ORDER as [string, ...string[]]),
    })
    .describe('how the figures are known'),
  external: z
    .array(component)
    .describe('at the peak of resident, or of reserved where resident is not known'),
  notes: z.array(z.string()).describe('what was assumed or is not modelled'),
  at_peak: atPeak,
  total_allocated: z.strictObject({
    ...share,
    operators: z.array(z.strictObject({ operator: z.string(), ...share })),
    stacks: z.array(stackShare),
  }),
  growth: z.array(
    z.strictObject({
      per: z.enum(['step', 'micro_batch']),
      phase: z.string(),
      bytes_each: z.number(),
      repetitions: z.number().int(),
      operator: z.string(),
      module: z.string(),
      frames: z.array(frame),
    }),
  ),
  metrics: z.array(
    z.strictObject({
      step: z.number(),
      'mem-allocated-bytes': size,
      'mem-max-allocated-bytes': size,
      'mem-reserved-bytes': size,
      'memory/max_active(GiB)': z.number(),
      'memory/max_active(%)': z.number().nullable(),
      'memory/max_reserved(GiB)': z.number(),
      'memory/max_reserved(%)': z.number().nullable(),
    }),
  ),
});

const phaseReport = z.strictObject({
  device: z.string(),
  path: z.string(),
  name: z.string(),
  occurrence: z.number().int(),
  depth: z.number().int(),
  labels: fields,
  step: z.number().nullable(),
  micro_batch: z.number().nullable(),
  begin_event: event,
  end_event: event,
  closed: z.boolean(),
  before: everyKind(knownSize),
  after: everyKind(knownSize),
  peak: everyKind(z.strictObject({ bytes: knownSize, event: event.nullable() })),
});

const coverage = z.strictObject({
  kind: z.string(),
  name: z.string(),
  detail: z.string(),
  assumption: z.string(),
  bytes: knownSize,
  count: z.number().int(),
  module: z.string(),
  call_site: frame.nullable(),
});

export const reportDocumentSchema = z.strictObject({
  schema: z.literal(REPORT_SCHEMA),
  predicted: z.boolean().describe('false for a run that was measured on a GPU'),
  run: z.strictObject({
    trace: z.string(),
    framework: z.string(),
    run: z.string(),
    created: z.string(),
    memtracker: z.string(),
    origin: z.string(),
    world: z.number().int(),
    rank: z.number().int(),
    gpus_per_node: z.number().int(),
    gpu: z.string(),
    steps: z.number().int(),
    checkout: z.string().nullable(),
    argv: z.array(z.string()),
    options: fields,
    source: fields,
    environment: z.record(z.string(), z.string()),
    identity: z.strictObject({
      /** What the real job will run on, as declared: one value a component. */
      target: fields.nullable(),
      /** What ran here. */
      simulator: z.strictObject({
        memtracker: z.string(),
        pytorch: z.string().nullable(),
        python: z.string().nullable(),
        adapter_sha256: z.string().nullable(),
        sidecar_sha256: z.string().nullable(),
        /** Of the framework's effective configuration. */
        config_sha256: z.string().nullable(),
      }),
      /** What the replay models. */
      modelled: z.strictObject({ allocator: z.string(), nccl: z.string(), gpu: z.string() }),
    }),
    facts: z.record(z.string(), fields),
  }),
  integrity: z.strictObject({
    complete: z.boolean(),
    status: z.string().nullable(),
    faults: z.array(z.string()),
    errors: z.array(
      z.strictObject({ exception: z.string(), cause: z.string(), fatal: z.boolean() }),
    ),
  }),
  replay: z
    .strictObject({
      alloc_conf: z.string().nullable(),
      gpu: z.string().nullable(),
      nccl: z.string().nullable(),
      topology: z.string().nullable(),
      bound: z
        .enum(['low', 'likely', 'high'])
        .describe('which figure of uncertain memory takes room'),
    })
    .describe('what was asked for; null is what the trace says'),
  devices: z.record(z.string(), deviceReport),
  phases: z.array(phaseReport),
  coverage: z.array(coverage),
});

export type ReportDocument = z.infer<typeof reportDocumentSchema>;
export type DeviceReport = ReportDocument['devices'][string];
export type PhaseReport = ReportDocument['phases'][number];
