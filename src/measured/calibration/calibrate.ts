// Captured runs -> a calibration profile. Only the headers of the files are read: the readings of the driver are all that counts here.

import { createHash } from 'node:crypto';
import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Band } from '../../base/band.ts';
import { UserError } from '../../base/errors.ts';
import { findGpu, type GpuModel } from '../../device/gpus.ts';
import { contextEstimate } from '../../external/context.ts';
import { type CaptureFile, looksLikeCapture, openCapture } from '../capture/capture_file.ts';
import type { CaptureHeader, CaptureReading } from '../capture/capture_schema.ts';
import { openMeasuredInput } from '../input.ts';
import { bandOf, PROFILE_SCHEMA, type ProfileInput, type ProfileTopology } from './profile.ts';

/** Steps are alike from here on: their readings are taken together. */
const STEADY_STEP = 3;

/**
 * The headers of all captured runs in a folder (or of one file), sorted by path.
 * @throws UserError `CALIBRATE_INPUT` when there is none, or as the reader of the files.
 */
export async function readCaptureHeaders(path: string): Promise<CaptureHeader[]> {
  let names: string[];
  try {
    names = (await stat(path)).isDirectory()
      ? (await readdir(path)).sort().map((name) => join(path, name))
      : [path];
  } catch (error) {
    throw new UserError('CALIBRATE_INPUT', `cannot read ${path}: ${(error as Error).message}`);
  }
  const files: CaptureFile[] = [];
  for (const name of names) {
    if (!(await stat(name)).isFile()) continue;
    const input = await openMeasuredInput(name);
    if (looksLikeCapture(input.head)) files.push(await openCapture(input));
  }
  if (files.length === 0) {
    throw new UserError(
      'CALIBRATE_INPUT',
      `${path} holds no captured run; \`memtracker capture\` makes one`,
    );
  }
  return files.map(({ header }) => header);
}

/** What a run is a run of: the same digest for the same framework, arguments, size and GPU, whatever the rank and the day. */
export function configurationOf(header: CaptureHeader): string {
  const { framework, argv, world, gpus_per_node, gpu, environment } = header;
  return createHash('sha256')
    .update(JSON.stringify([framework, argv, world, gpus_per_node, gpu.name, environment]))
    .digest('hex')
    .slice(0, 16);
}

/**
 * A profile from calibration runs of one topology and one set of versions.
 * @throws UserError `CALIBRATE_PURPOSE` for a validation run, `CALIBRATE_MIXED` when the runs do not belong together,
 *   `CALIBRATE_INPUT` when a run has no readings of the driver.
 */
export function calibrate(name: string, headers: readonly CaptureHeader[]): ProfileInput {
  const [first] = headers;
  if (first === undefined) throw new UserError('CALIBRATE_INPUT', 'no captured run was given');
  const validation = headers.filter(({ purpose }) => purpose === 'validation');
  if (validation.length > 0) {
    throw new UserError(
      'CALIBRATE_PURPOSE',
      `${validation.length} of ${headers.length} files were captured for validation and cannot calibrate; capture with --purpose calibration, and keep other configurations for validation`,
    );
  }
  const topology = topologyOf(first);
  for (const header of headers) refuseMixture(first, topology, header);

  const gpu = knownGpu(first.gpu.name);
  const samples = new Map<string, { external: number[]; nccl: number[] }>();
  const last: number[] = [];
  let readings = 0;
  for (const header of headers) {
    let largest = -1;
    for (const { phase, reading } of phaseEnds(header)) {
      const external = externalOf(reading);
      if (external === undefined) continue;
      readings++;
      largest = Math.max(largest, external);
      const phaseSamples = samples.get(phase) ?? { external: [], nccl: [] };
      phaseSamples.external.push(external);
      const nccl = ncclOf(reading);
      if (nccl !== undefined) phaseSamples.nccl.push(nccl);
      samples.set(phase, phaseSamples);
    }
    if (largest >= 0) last.push(largest);
  }
  if (readings === 0) {
    throw new UserError(
      'CALIBRATE_INPUT',
      'no phase boundary has a reading of the driver: was the run labelled (--framework), and did it get past its first phase?',
    );
  }

  const phases = [...samples].map(([phase, { external, nccl }]) => {
    const measured = bandOf(external);
    const explained: ProfileInput['phases'][number]['explained'] = [];
    if (gpu !== undefined) {
      const context = contextEstimate(gpu);
      explained.push({
        name: 'CUDA context',
        bytes: whole(context.bytes),
        evidence: context.evidence,
        source: context.source,
      });
    }
    if (nccl.length === external.length) {
      explained.push({
        name: 'NCCL, by its own statistics',
        bytes: bandOf(nccl),
        evidence: 'executed',
        source: `ncclCommMemStats, NCCL ${first.versions.nccl}`,
      });
    }
    return {
      phase,
      samples: external.length,
      measured,
      explained,
      residual: {
        low: measured.low - sum(explained, 'high'),
        likely: measured.likely - sum(explained, 'likely'),
        high: measured.high - sum(explained, 'low'),
      },
    };
  });

  const dates = headers.map(({ created }) => created).sort();
  const { torch, cuda, nccl, driver } = first.versions;
  const provenance =
    `${headers.length} captured rank${headers.length === 1 ? '' : 's'} on ${topology.gpu}, ${topology.world} ranks, ` +
    `${topology.gpus_per_node} a node, groups of ${topology.groups.join(', ') || 'none'}; driver ${driver ?? 'unknown'}, CUDA ${cuda ?? 'unknown'}, ` +
    `NCCL ${nccl ?? 'unknown'}, torch ${torch}; ${dates[0]} to ${dates[dates.length - 1]}`;
  return {
    schema: PROFILE_SCHEMA,
    name,
    created: new Date().toISOString(),
    topology,
    versions: { torch, cuda, nccl, driver },
    measured: { first: dates[0], last: dates[dates.length - 1] },
    configurations: [...new Set(headers.map(configurationOf))].sort(),
    ranks: headers.length,
    phases,
    components: [
      {
        name: 'device memory outside the allocator, measured',
        category: 'residual',
        bytes: whole(bandOf(last)),
        lifetime: 'persistent',
        evidence: 'calibrated',
        provenance,
        // Driver-used minus reserved holds all of it, whoever took it.
        includes: ['context', 'library', 'nccl', 'other'],
      },
    ],
    notes: notesFor(headers, gpu),
  };
}

function refuseMixture(
  first: CaptureHeader,
  topology: ProfileTopology,
  header: CaptureHeader,
): void {
  const mixed = (what: string, a: unknown, b: unknown): never => {
    throw new UserError(
      'CALIBRATE_MIXED',
      `the files are of different ${what} (${String(a)} and ${String(b)}); calibrate each by itself`,
    );
  };
  const other = topologyOf(header);
  if (JSON.stringify(other) !== JSON.stringify(topology)) {
    mixed('topologies', JSON.stringify(topology), JSON.stringify(other));
  }
  for (const key of ['torch', 'cuda', 'nccl', 'driver'] as const) {
    if (first.versions[key] !== header.versions[key]) {
      mixed(`${key} versions`, first.versions[key], header.versions[key]);
    }
  }
}

function topologyOf(header: CaptureHeader): ProfileTopology {
  return {
    gpu: header.gpu.name,
    world: header.world,
    gpus_per_node: Math.min(header.gpus_per_node, header.world),
    groups: [...new Set(header.communicators.map(({ ranks }) => ranks.length))]
      .filter((ranks) => ranks > 0)
      .sort((a, b) => a - b),
  };
}

/** The end of every phase with its path; steps from the third on are one. */
function* phaseEnds(
  header: CaptureHeader,
): Generator<{ readonly phase: string; readonly reading: CaptureReading }> {
  const open: string[] = [];
  for (const mark of header.marks) {
    if (mark.kind === 'begin') {
      open.push(phaseText(mark.name, mark.labels));
      continue;
    }
    // A failed phase says what was there when it failed, which is a reading like any other.
    if (mark.reading !== null && open.length > 0)
      yield { phase: open.join('/'), reading: mark.reading };
    open.pop();
  }
}

function phaseText(name: string, labels: Readonly<Record<string, unknown>>): string {
  const text = Object.entries(labels)
    .filter(([label]) => label !== 'micro_batch')
    .map(([label, value]) =>
      label === 'step' && Number(value) >= STEADY_STEP
        ? `step>=${STEADY_STEP}`
        : `${label}=${String(value)}`,
    )
    .join(',');
  return text === '' ? name : `${name}[${text}]`;
}

/** Used on the device − reserved; undefined where the driver was not read. */
function externalOf(reading: CaptureReading): number | undefined {
  const { driver_free: free, driver_total: total, reserved } = reading;
  if (free === null || total === null) return undefined;
  const external = total - free - reserved;
  return external >= 0 ? external : undefined;
}

/** Sum of the communicators' totals, where NCCL says. */
function ncclOf(reading: CaptureReading): number | undefined {
  if (reading.nccl === null) return undefined;
  let total = 0;
  for (const statistics of Object.values(reading.nccl)) {
    const entry = Object.entries(statistics).find(([key]) => /total/i.test(key));
    if (entry === undefined) return undefined;
    total += entry[1];
  }
  return total;
}

function knownGpu(name: string): GpuModel | undefined {
  try {
    return findGpu(name);
  } catch {
    return undefined;
  }
}

function sum(parts: readonly { readonly bytes: Band }[], bound: keyof Band): number {
  return parts.reduce((total, { bytes }) => total + bytes[bound], 0);
}

function whole({ low, likely, high }: Band): Band {
  return { low: Math.floor(low), likely: Math.round(likely), high: Math.ceil(high) };
}

function notesFor(headers: readonly CaptureHeader[], gpu: GpuModel | undefined): string[] {
  const notes = [
    'Driver-used minus reserved is device-wide: other processes on the GPU are in it. Use GPUs that nothing else runs on.',
  ];
  if (gpu === undefined) {
    notes.push(`No formula is known for the context of ${headers[0].gpu.name}: all is residual.`);
  }
  if (headers.some(({ disturbed_by: by }) => by.length > 0)) {
    notes.push('Some runs were captured with synchronize, empty_cache or reset_peak.');
  }
  return notes;
}
