// A calibration profile: what stood outside the caching allocator on a real GPU, phase by phase, with where it was measured. Saved
// under a name; `--profile NAME` puts it beside an estimate with the evidence `calibrated`.
//
// A profile holds for the topology that it was measured on. On another one it is an extrapolation, which must be asked for and is
// then `assumed`.

import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import type { Band } from '../../base/band.ts';
import { UserError } from '../../base/errors.ts';
import { type Component, componentSchema } from '../../external/component.ts';
import type { TraceHeader } from '../../trace/file_format.ts';
import type { Trace } from '../../trace/trace.ts';

export const PROFILE_SCHEMA = 'memtracker-calibration/1';

const size = z.int().nonnegative();
const band = z.strictObject({ low: size, likely: size, high: size });
/** A residual can be below zero: the formulas then say more than was there. */
const signedBand = z.strictObject({ low: z.int(), likely: z.int(), high: z.int() });

export const topologySchema = z.strictObject({
  /** As the driver names it. */
  gpu: z.string(),
  world: z.int().positive(),
  gpus_per_node: z.int().positive(),
  /** Sizes of the process groups, sorted, each once. */
  groups: z.array(z.int().positive()),
});
export type ProfileTopology = z.infer<typeof topologySchema>;

export const profileSchema = z.strictObject({
  schema: z.literal(PROFILE_SCHEMA),
  name: z.string().min(1),
  created: z.string(),
  topology: topologySchema,
  versions: z.strictObject({
    torch: z.string(),
    cuda: z.string().nullable(),
    nccl: z.string().nullable(),
    driver: z.string().nullable(),
  }),
  /** Date of the oldest and of the newest run. */
  measured: z.strictObject({ first: z.string(), last: z.string() }),
  /** Configurations of the runs, as digests: estimates of the same ones cannot be scored with this profile. */
  configurations: z.array(z.string()),
  ranks: z.int().positive(),
  phases: z.array(
    z.strictObject({
      phase: z.string(),
      samples: z.int().positive(),
      /** At the end of the phase: used on the device − reserved. */
      measured: band,
      explained: z.array(
        z.strictObject({ name: z.string(), bytes: band, evidence: z.string(), source: z.string() }),
      ),
      /** Measured − explained. */
      residual: signedBand,
    }),
  ),
  components: z.array(componentSchema),
  notes: z.array(z.string()),
});
export type CalibrationProfile = z.output<typeof profileSchema>;

/** What componentSchema takes: sizes are written as they are read. */
export type ProfileInput = z.input<typeof profileSchema>;

/** `~/.config/memtracker/calibration/NAME.json`, or the path itself when the name is one. */
export function profilePath(
  name: string,
  environment: Readonly<Record<string, string | undefined>>,
): string {
  if (/[/\\]|\.json$/.test(name)) return name;
  const base = environment.XDG_CONFIG_HOME ?? join(environment.HOME ?? '.', '.config');
  return join(base, 'memtracker', 'calibration', `${name}.json`);
}

/** @throws UserError `PROFILE_READ`. */
export async function readProfile(path: string): Promise<CalibrationProfile> {
  let raw: unknown;
  try {
    raw = JSON.parse(await readFile(path, 'utf8'));
  } catch (error) {
    throw new UserError(
      'PROFILE_READ',
      `cannot read the calibration profile ${path}: ${(error as Error).message}; \`memtracker calibrate\` makes one`,
    );
  }
  const parsed = profileSchema.safeParse(raw);
  if (parsed.success) return parsed.data;
  throw new UserError(
    'PROFILE_READ',
    `${path} is no calibration profile:\n${z.prettifyError(parsed.error)}`,
  );
}

/** @throws UserError `PROFILE_WRITE`. */
export async function writeProfile(path: string, profile: ProfileInput): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, `${JSON.stringify(profile, undefined, 2)}\n`);
  } catch (error) {
    throw new UserError('PROFILE_WRITE', `cannot write ${path}: ${(error as Error).message}`);
  }
}

/** The topology of a traced or captured job, as far as its header and its process groups say. */
export function topologyOfTrace(trace: Trace, gpu: string): ProfileTopology {
  const { header } = trace;
  const sizes = new Set<number>();
  for (const event of trace.rare) {
    if (event.type === 'communicator' && event.ranks.length > 0) sizes.add(event.ranks.length);
  }
  return {
    gpu,
    world: header.world,
    gpus_per_node: gpusPerNode(header),
    groups: [...sizes].sort((a, b) => a - b),
  };
}

/** A job smaller than a node uses only so many of its GPUs. */
function gpusPerNode({
  gpus_per_node,
  world,
}: Pick<TraceHeader, 'gpus_per_node' | 'world'>): number {
  return Math.min(gpus_per_node, world);
}

/** In what a job differs from the profile, in words; empty when in nothing that is known of both. */
export function topologyDifferences(profile: ProfileTopology, job: ProfileTopology): string[] {
  const differences: string[] = [];
  const same = (a: string, b: string): boolean => normal(a) === normal(b);
  if (!same(profile.gpu, job.gpu)) differences.push(`GPU ${profile.gpu} instead of ${job.gpu}`);
  if (profile.world !== job.world) {
    differences.push(`${profile.world} ranks instead of ${job.world}`);
  }
  if (profile.gpus_per_node !== job.gpus_per_node) {
    differences.push(`${profile.gpus_per_node} GPUs a node instead of ${job.gpus_per_node}`);
  }
  if (job.groups.length > 0 && job.groups.join() !== profile.groups.join()) {
    differences.push(
      `process groups of ${profile.groups.join(', ') || 'none'} ranks instead of ${job.groups.join(', ')}`,
    );
  }
  return differences;
}

function normal(gpu: string): string {
  return gpu
    .toLowerCase()
    .replace(/^nvidia\s+/, '')
    .replace(/[\s_]+/g, '-');
}

export interface AppliedProfile {
  readonly components: readonly Component[];
  readonly notes: readonly string[];
}

/**
 * The profile's components for a job of this topology.
 * @throws UserError `PROFILE_TOPOLOGY` when it is another one and `extrapolate` is not set.
 */
export function applyProfile(
  profile: CalibrationProfile,
  job: ProfileTopology,
  options: { readonly extrapolate?: boolean } = {},
): AppliedProfile {
  const differences = topologyDifferences(profile.topology, job);
  if (differences.length === 0) {
    return {
      components: profile.components,
      notes: [`Memory outside the allocator: calibration profile ${profile.name}`],
    };
  }
  if (options.extrapolate !== true) {
    throw new UserError(
      'PROFILE_TOPOLOGY',
      `the calibration profile ${profile.name} was measured on another topology: ${differences.join(', ')}. ` +
        'Calibrate on this one, or pass --extrapolate to use it as an assumption.',
    );
  }
  return {
    components: profile.components.map((component) => ({
      ...component,
      evidence: 'assumed',
      provenance: `extrapolated to another topology (${differences.join(', ')}): ${component.provenance}`,
    })),
    notes: [
      `Memory outside the allocator is extrapolated from calibration profile ${profile.name}: ${differences.join(', ')}`,
    ],
  };
}

/** Smallest, middle and largest of some figures. */
export function bandOf(values: readonly number[]): Band {
  const sorted = [...values].sort((a, b) => a - b);
  return {
    low: sorted[0],
    likely: sorted[Math.floor((sorted.length - 1) / 2)],
    high: sorted[sorted.length - 1],
  };
}
