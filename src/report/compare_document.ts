// The JSON form of a comparison; its schema is published as docs/compare.schema.json. A size that is not known is null.

import { z } from 'zod';
import { phaseTitle } from '../attribution/phase_title.ts';
import type { Causes } from '../compare/change.ts';
import type { Comparison, Difference, Differences } from '../compare/comparison.ts';
import type { Threshold } from '../compare/threshold.ts';
import { MEMORY_KINDS, type MemoryKind } from '../timeline/timeline.ts';
import { overThreshold } from './compare_sections.ts';

export const COMPARE_SCHEMA = 'memtracker-compare/1';

const knownSize = z.number().int().nonnegative().nullable();
const difference = z.strictObject({
  a: knownSize,
  b: knownSize,
  delta: z.number().int().nullable().describe('b - a'),
});
const differences = z.strictObject({
  requested: difference,
  allocated: difference,
  active: difference,
  reserved: difference,
  external: difference,
  resident: difference,
});
const change = z.strictObject({
  name: z.string(),
  a: z.number().int(),
  b: z.number().int(),
  delta: z.number().int(),
});
const causes = z
  .strictObject({
    owners: z.array(change),
    modules: z.array(change),
    operators: z.array(change),
    call_sites: z.array(change),
  })
  .describe('what differs in the composition of allocated, each side at its own peak');

export const compareDocumentSchema = z.strictObject({
  schema: z.literal(COMPARE_SCHEMA),
  a: z.strictObject({ trace: z.string(), run: z.string(), complete: z.boolean() }),
  b: z.strictObject({ trace: z.string(), run: z.string(), complete: z.boolean() }),
  devices: z.record(
    z.string(),
    z.strictObject({
      peak: differences,
      causes,
      phases: z.array(
        z.strictObject({
          a: z
            .string()
            .nullable()
            .describe('path in the first run; null where it has no such phase'),
          b: z.string().nullable(),
          peak: differences.nullable(),
          causes: causes.nullable().describe('for the phases that differ most'),
        }),
      ),
    }),
  ),
  only_in_a: z.array(z.string()),
  only_in_b: z.array(z.string()),
  above_threshold: z
    .array(z.strictObject({ device: z.string(), kind: z.string(), a: knownSize, b: knownSize }))
    .nullable()
    .describe('null without --fail-above'),
});
export type CompareDocument = z.infer<typeof compareDocumentSchema>;

/** Longest list of changes. */
const TOP = 50;

export function compareDocument(
  comparison: Comparison,
  threshold: Threshold | null = null,
): CompareDocument {
  return {
    schema: COMPARE_SCHEMA,
    a: side(comparison.a),
    b: side(comparison.b),
    devices: Object.fromEntries(
      comparison.devices.map((device) => [
        device.name,
        {
          peak: everyDifference(device.peaks),
          causes: everyCause(device.causes),
          phases: device.phases.map(({ a, b, peaks, causes: found }) => ({
            a: a === null ? null : phaseTitle(a.phase),
            b: b === null ? null : phaseTitle(b.phase),
            peak: peaks === null ? null : everyDifference(peaks),
            causes: found === null ? null : everyCause(found),
          })),
        },
      ]),
    ),
    only_in_a: [...comparison.onlyInA],
    only_in_b: [...comparison.onlyInB],
    above_threshold:
      threshold === null ? null : overThreshold(comparison, threshold).map((item) => ({ ...item })),
  };
}

export function compareJsonSchema(): Record<string, unknown> {
  return {
    title: 'memtracker compare',
    description: 'Difference of two runs, phase by phase. Sizes are bytes; null is not known.',
    ...z.toJSONSchema(compareDocumentSchema),
  };
}

function side({ path, trace }: Comparison['a']): CompareDocument['a'] {
  return { trace: path, run: trace.header.run, complete: trace.integrity.complete };
}

function everyDifference(values: Differences): Record<MemoryKind, Known> {
  return Object.fromEntries(MEMORY_KINDS.map((kind) => [kind, known(values[kind])])) as Record<
    MemoryKind,
    Known
  >;
}

interface Known {
  a: number | null;
  b: number | null;
  delta: number | null;
}

function known({ a, b, delta }: Difference): Known {
  const orNull = (value: number) => (Number.isNaN(value) ? null : value);
  return { a: orNull(a), b: orNull(b), delta: orNull(delta) };
}

function everyCause({ owners, modules, operators, callSites }: Causes) {
  const list = (changes: Causes['owners']) => changes.slice(0, TOP).map((item) => ({ ...item }));
  return {
    owners: list(owners),
    modules: list(modules),
    operators: list(operators),
    call_sites: list(callSites),
  };
}
