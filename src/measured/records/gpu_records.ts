// Records of GPU runs that were written down by hand: allocator checkpoints, driver readings by phase, out-of-memory errors and peaks
// from logs. They are imported as what they are: a reading is a component of its phase, an out-of-memory error is a lower bound
// (never a peak, and the request that failed is never added to it), a figure that was not written down is unknown.

import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { exactly } from '../../base/band.ts';
import { GiB, MiB } from '../../base/bytes.ts';
import { UserError } from '../../base/errors.ts';
import type { Component } from '../../external/component.ts';

const bytes = z.int().nonnegative();
const gib = z.number().nonnegative();

const oomSchema = z.object({
  job: z.int(),
  rank: z.int().nonnegative(),
  phase: z.string(),
  schedule: z.string(),
  sequence: z.int().positive(),
  microbatch: z.string(),
  requested_gib: gib.optional(),
  capacity_gib: gib.optional(),
  device_free_gib: gib.optional(),
  process_gib: gib.optional(),
  allocated_gib: gib.optional(),
  reserved_unallocated_gib: gib.optional(),
  /** The job whose recipe this one repeats. */
  same_recipe_as: z.int().optional(),
});

const reducedSchema = z.object({
  job: z.int(),
  microbatch: z.string(),
  max_active_gib: gib,
  max_reserved_gib: gib,
  last_active_gib: gib,
  last_reserved_gib: gib,
});

export const gpuRecordsSchema = z.object({
  source: z.string(),
  calibration: z.object({
    date: z.string(),
    topology: z.string(),
    runtime: z.object({
      pytorch: z.string(),
      cuda: z.string(),
      nccl: z.string(),
      driver: z.string(),
      device_total_bytes: bytes,
    }),
    allocator_checkpoints_bytes: z.array(
      z.object({
        phase: z.string(),
        allocated: bytes,
        reserved_fixed: bytes,
        reserved_expandable: bytes,
      }),
    ),
    driver_used_minus_reserved_mib: z.array(
      z.object({ phase: z.string(), rank0: z.number(), rank1: z.number() }),
    ),
    nvml_minus_driver_used_mib: z.number(),
    notes: z.array(z.string()),
  }),
  historical_runs: z.object({
    environment: z.record(z.string(), z.string()),
    model: z.string(),
    oom: z.array(oomSchema),
    pass_reduced_model: z.object({ model: z.string(), runs: z.array(reducedSchema) }),
  }),
});

export interface AllocatorCheckpoint {
  readonly phase: string;
  readonly allocated: number;
  readonly reservedFixed: number;
  readonly reservedExpandable: number;
}

/** A run that ended out of memory. Bytes; undefined where the log did not say. */
export interface CensoredConstraint {
  readonly kind: 'censored';
  readonly job: number;
  readonly rank: number;
  readonly phase: string;
  /** Runs of one recipe share it: they stay on one side when calibration and validation are split. */
  readonly recipe: string;
  /** What could not be had. Part of the constraint's story, not of any total. */
  readonly requested: number | undefined;
  readonly capacity: number | undefined;
  readonly deviceFree: number | undefined;
  readonly allocated: number | undefined;
  /** Allocated + reserved but unallocated. */
  readonly reserved: number | undefined;
  /** What the process held when it failed: the job needs more than this. */
  readonly lowerBound: number | undefined;
  /** Process − reserved: outside the allocator. */
  readonly external: number | undefined;
}

/** A run of a reduced model that went through, with the peaks that its log printed. */
export interface ReducedRun {
  readonly kind: 'reduced';
  readonly job: number;
  readonly recipe: string;
  readonly model: string;
  readonly maxActive: number;
  readonly maxReserved: number;
  readonly lastActive: number;
  readonly lastReserved: number;
}

export interface GpuRecords {
  readonly source: string;
  readonly deviceTotal: number;
  readonly checkpoints: readonly AllocatorCheckpoint[];
  /** One measured component a phase, by rank. */
  readonly external: readonly (readonly Component[])[];
  readonly constraints: readonly CensoredConstraint[];
  readonly reduced: readonly ReducedRun[];
}

/** @throws UserError `RECORDS_READ`. */
export async function readGpuRecords(path: string): Promise<GpuRecords> {
  let raw: unknown;
  try {
    raw = JSON.parse(await readFile(path, 'utf8'));
  } catch (error) {
    throw new UserError('RECORDS_READ', `cannot read ${path}: ${(error as Error).message}`);
  }
  const parsed = gpuRecordsSchema.safeParse(raw);
  if (!parsed.success) {
    throw new UserError('RECORDS_READ', `${path}:\n${z.prettifyError(parsed.error)}`);
  }
  return importRecords(parsed.data);
}

export function importRecords(records: z.infer<typeof gpuRecordsSchema>): GpuRecords {
  const { calibration, historical_runs: runs } = records;
  const { topology, date, runtime } = calibration;
  const provenance = `${records.source}; ${date}, ${topology}; driver ${runtime.driver}, CUDA ${runtime.cuda}, NCCL ${runtime.nccl}, torch ${runtime.pytorch}`;
  const component = (phase: string, mib: number): Component => ({
    name: `outside the allocator: ${phase}`,
    category: 'residual',
    bytes: exactly(Math.round(mib * MiB)),
    lifetime: { phase },
    evidence: 'calibrated',
    provenance,
    includes: ['context', 'library', 'nccl', 'other'],
  });
  return {
    source: records.source,
    deviceTotal: runtime.device_total_bytes,
    checkpoints: calibration.allocator_checkpoints_bytes.map((checkpoint) => ({
      phase: checkpoint.phase,
      allocated: checkpoint.allocated,
      reservedFixed: checkpoint.reserved_fixed,
      reservedExpandable: checkpoint.reserved_expandable,
    })),
    external: (['rank0', 'rank1'] as const).map((rank) =>
      calibration.driver_used_minus_reserved_mib.map((row) => component(row.phase, row[rank])),
    ),
    constraints: runs.oom.map((row) => constraint(row, runs.oom)),
    reduced: runs.pass_reduced_model.runs.map((run) => ({
      kind: 'reduced',
      job: run.job,
      recipe: `reduced ${run.microbatch}`,
      model: runs.pass_reduced_model.model,
      maxActive: run.max_active_gib * GiB,
      maxReserved: run.max_reserved_gib * GiB,
      lastActive: run.last_active_gib * GiB,
      lastReserved: run.last_reserved_gib * GiB,
    })),
  };
}

type OomRow = z.infer<typeof oomSchema>;

function constraint(row: OomRow, rows: readonly OomRow[]): CensoredConstraint {
  const recipeOf = rows.find(({ job }) => job === row.same_recipe_as) ?? row;
  const size = (value: number | undefined): number | undefined =>
    value === undefined ? undefined : Math.round(value * GiB);
  const allocated = size(row.allocated_gib);
  const unallocated = size(row.reserved_unallocated_gib);
  const process = size(row.process_gib);
  const reserved =
    allocated === undefined || unallocated === undefined ? undefined : allocated + unallocated;
  return {
    kind: 'censored',
    job: row.job,
    rank: row.rank,
    phase: row.phase,
    recipe: `${recipeOf.schedule}, sequence ${recipeOf.sequence}, micro-batch ${recipeOf.microbatch}`,
    requested: size(row.requested_gib),
    capacity: size(row.capacity_gib),
    deviceFree: size(row.device_free_gib),
    allocated,
    reserved,
    lowerBound: process,
    external: process === undefined || reserved === undefined ? undefined : process - reserved,
  };
}

/**
 * What an estimate of the same rank says against a run that ended out of memory: `contradicts` when it needs no more than the
 * process held, `consistent` when it needs more, `unknown` when the log gave no figure. It is never a score.
 */
export function againstConstraint(
  constraint: CensoredConstraint,
  estimatedResident: number,
): 'consistent' | 'contradicts' | 'unknown' {
  if (constraint.lowerBound === undefined || Number.isNaN(estimatedResident)) return 'unknown';
  return estimatedResident > constraint.lowerBound ? 'consistent' : 'contradicts';
}

/** Splits runs in two by recipe: all runs of one recipe land on the same side. Recipes in `calibration` go to the first. */
export function splitByRecipe<R extends { readonly recipe: string }>(
  runs: readonly R[],
  calibration: ReadonlySet<string>,
): { readonly calibration: readonly R[]; readonly validation: readonly R[] } {
  return {
    calibration: runs.filter(({ recipe }) => calibration.has(recipe)),
    validation: runs.filter(({ recipe }) => !calibration.has(recipe)),
  };
}
