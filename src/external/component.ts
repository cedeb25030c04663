// Components: device memory that is neither the caching allocator's nor NCCL's, stated by a person or a measurement. Nothing
// here has a default: name, category, bytes, lifetime, evidence and provenance are all required.
//
// A component of category `context` stands for this process's CUDA context and replaces the modelled one; the contexts of other
// processes on the GPU are `other`.

import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { type Band, band, exactly } from '../base/band.ts';
import { parseBytes } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import type { Evidence } from '../base/evidence.ts';

/** What a component is. A residual is everything that a measurement found beside `reserved`. */
export const CATEGORIES = ['context', 'library', 'nccl', 'workspace', 'other', 'residual'] as const;
export type Category = (typeof CATEGORIES)[number];

/** Whole bytes, or a size in words (`426MiB`). */
const sizeSchema = z.union([z.int().nonnegative(), z.string()]);

/** One size, or three. */
const bandSchema = z
  .union([sizeSchema, z.strictObject({ low: sizeSchema, likely: sizeSchema, high: sizeSchema })])
  .transform((value, context): Band => {
    try {
      if (typeof value !== 'object') return exactly(sizeOf(value));
      return band(sizeOf(value.low), sizeOf(value.likely), sizeOf(value.high));
    } catch (error) {
      context.addIssue((error as Error).message);
      return z.NEVER;
    }
  });

function sizeOf(value: number | string): number {
  return typeof value === 'number' ? value : parseBytes(value);
}

export const componentSchema = z
  .strictObject({
    name: z.string().min(1),
    category: z.enum(CATEGORIES),
    /** Bytes, or three of them. */
    bytes: bandSchema,
    /** The whole run, or only while a phase of that name is open. */
    lifetime: z.union([z.literal('persistent'), z.strictObject({ phase: z.string().min(1) })]),
    evidence: z.enum(['executed', 'source', 'calibrated', 'assumed', 'unknown']),
    /** Where the figure comes from. */
    provenance: z.string().min(1),
    /** Of a residual: which categories the measurement already held. */
    includes: z.array(z.enum(CATEGORIES)).optional(),
  })
  .refine((component) => component.category !== 'residual' || component.includes !== undefined, {
    message: 'a residual must say what it includes: "includes": ["context", "nccl", …]',
  });

export interface Component {
  readonly name: string;
  readonly category: Category;
  readonly bytes: Band;
  readonly lifetime: 'persistent' | { readonly phase: string };
  readonly evidence: Evidence;
  readonly provenance: string;
  readonly includes?: readonly Category[] | undefined;
}

/** @throws UserError `bad-component` naming every missing or wrong field. */
export function parseComponents(raw: unknown, where: string): Component[] {
  const parsed = z.array(componentSchema).safeParse(raw);
  if (parsed.success) return parsed.data;
  throw new UserError('bad-component', `${where}:\n${z.prettifyError(parsed.error)}`);
}

/** Reads a JSON file that holds a list of components. @throws UserError `bad-component`. */
export function readComponents(path: string): Component[] {
  let raw: unknown;
  try {
    raw = JSON.parse(readFileSync(path, 'utf8'));
  } catch (cause) {
    throw new UserError('bad-component', `cannot read ${path}: ${(cause as Error).message}`, {
      cause,
    });
  }
  return parseComponents(raw, path);
}

/**
 * Refuses to count memory twice: what a measured residual already holds cannot stand beside a model or a component of the
 * same thing.
 * @param modelled categories that are modelled beside the components.
 * @throws UserError `counted-twice` with the reason.
 */
export function refuseDoubleCounting(
  components: readonly Component[],
  modelled: readonly Category[],
): void {
  for (const residual of components) {
    for (const category of residual.includes ?? []) {
      if (modelled.includes(category)) {
        throw new UserError(
          'counted-twice',
          `"${residual.name}" was measured with ${category} in it (${residual.provenance}); ` +
            `${category} cannot be modelled beside it. Leave out one of the two.`,
        );
      }
      const other = components.find(
        (component) => component !== residual && component.category === category,
      );
      if (other !== undefined) {
        throw new UserError(
          'counted-twice',
          `"${residual.name}" was measured with ${category} in it; "${other.name}" would be counted twice. ` +
            'Leave out one of the two.',
        );
      }
    }
  }
}
