// One trace to be made: the part of a variation that needs a run of the training code. Everything else about a variation
// (capacity, allocator settings, NCCL, other memory, margin) is a replay of the same trace and does not appear here.

import { createHash } from 'node:crypto';
import { dirname, join, resolve } from 'node:path';
import { z } from 'zod';
import { findGpu, GPU_MODELS, type GpuModel, parseCapacity } from '../device/gpus.ts';
import { decidingEnvironment, folderSha256, sourceIdentity } from '../sidecar/source_identity.ts';
import type { Variation } from './variation.ts';

export const workUnitSchema = z.strictObject({
  framework: z.string(),
  checkout: z.string().nullable(),
  argv: z.array(z.string()),
  cwd: z.string(),
  world: z.int().positive(),
  gpus_per_node: z.int().positive(),
  rank: z.int().nonnegative(),
  /** Name of a GPU model: its capability and multiprocessors decide which kernels run; its memory does not. */
  gpu: z.string(),
  steps: z.int().positive(),
  options: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
  /** Set over the environment of the caller. */
  environment: z.record(z.string(), z.string()),
});
export type WorkUnit = z.infer<typeof workUnitSchema>;

/** The GPU that kernels see when a variation gives its capacity in bytes alone. */
const DEFAULT_GPU = 'h100-80gb';

export function unitOf(variation: Variation, rank: number): WorkUnit {
  return {
    framework: variation.framework,
    checkout: variation.checkout,
    argv: [...variation.argv],
    cwd: variation.cwd,
    world: variation.world.ranks,
    gpus_per_node: variation.world.gpusPerNode,
    rank,
    gpu: kernelGpu(parseCapacity(variation.gpu).gpu ?? findGpu(DEFAULT_GPU)).name,
    steps: variation.steps,
    options: { ...variation.options },
    environment: { ...variation.environment },
  };
}

/**
 * The first model with the same capability, multiprocessors and threads: an 80 GB and a 141 GB part of one chip run the
 * same kernels, so one trace serves both. (A job that reads `total_memory` to size its own buffers would differ;
 * neither TorchTitan nor Megatron-LM does.)
 */
function kernelGpu(gpu: GpuModel): GpuModel {
  const same = GPU_MODELS.find(
    (other) =>
      other.capability.join() === gpu.capability.join() &&
      other.multiprocessors === gpu.multiprocessors &&
      other.threadsPerMultiprocessor === gpu.threadsPerMultiprocessor,
  );
  return same ?? gpu;
}

/** Computes content keys. Reads each folder once. */
export class UnitKeys {
  readonly #packageFolder: string;
  readonly #versions: string;
  readonly #folders = new Map<string, Promise<string>>();

  /**
   * @param packageFolder holds `python/memtracker_sidecar` and `adapters`.
   * @param versions what else decides a trace: the versions of memtracker, torch, Python and installed packages.
   */
  constructor(packageFolder: string, versions: string) {
    this.#packageFolder = packageFolder;
    this.#versions = versions;
  }

  /** Two units with one key give the same trace. 64 hexadecimal digits. */
  async key(unit: WorkUnit, env: Readonly<Record<string, string | undefined>>): Promise<string> {
    const [sidecar, adapter, source] = await Promise.all([
      this.#contents(join(this.#packageFolder, 'python', 'memtracker_sidecar')),
      this.#contents(join(this.#packageFolder, 'adapters', unit.framework)),
      unit.checkout === null ? this.#script(unit) : this.#checkout(unit.checkout),
    ]);
    const { gpu, cwd: _cwd, checkout: _checkout, ...rest } = unit;
    const model = findGpu(gpu);
    const parts = {
      versions: this.#versions,
      sidecar,
      adapter,
      source,
      ...rest,
      options: sorted(rest.options),
      // What the unit sets is its own, whatever it is called; of what it inherits, what changes what a job allocates.
      environment: sorted({ ...decidingEnvironment(env), ...unit.environment }),
      capability: model.capability,
      multiprocessors: model.multiprocessors,
    };
    return createHash('sha256').update(JSON.stringify(parts)).digest('hex');
  }

  async #checkout(folder: string): Promise<string> {
    const { commit, diff_sha256 } = await sourceIdentity(folder);
    return commit === null ? this.#contents(folder) : `${commit} ${diff_sha256}`;
  }

  /** A plain script: its own text and that of every Python file beside it (it may import them). */
  async #script(unit: WorkUnit): Promise<string> {
    const script = unit.argv[0];
    if (script === undefined) return '';
    return this.#contents(dirname(resolve(unit.cwd, script)));
  }

  /** Hash over the Python, TOML, YAML and JSON files of a folder, names and contents. */
  #contents(folder: string): Promise<string> {
    let hash = this.#folders.get(folder);
    if (hash === undefined) {
      hash = folderSha256(folder);
      this.#folders.set(folder, hash);
    }
    return hash;
  }
}

function sorted<T>(record: Readonly<Record<string, T>>): Record<string, T> {
  return Object.fromEntries(Object.entries(record).sort(([a], [b]) => (a < b ? -1 : 1)));
}
