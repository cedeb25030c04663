// Everything on the device that is neither the caching allocator's nor a communicator's: the CUDA context, NCCL's code and
// kernel stacks (once a process), components, and ledger entries of the job. One running total, one breakdown.

import { addBands, type Band, exactly, NO_BAND } from '../base/band.ts';
import type { Evidence } from '../base/evidence.ts';
import {
  CONTEXT_STACK,
  type GpuProperties,
  type KernelFamily,
  kernelStack,
  localMemoryTerm,
  moduleTerm,
} from '../nccl/process_memory.ts';
import type { MemoryTerm } from '../nccl/term.ts';
import type { Category, Component } from './component.ts';
import { contextEstimate } from './context.ts';

/** One row of the breakdown. `bytes` is absent where nothing is known. */
export interface ExternalFigure {
  readonly name: string;
  readonly category: Category;
  readonly bytes: Band | undefined;
  readonly evidence: Evidence;
  readonly provenance: string;
}

export interface ExternalOptions {
  /** Absent: the properties of the GPU are not known, and neither is its context. */
  readonly gpu?: GpuProperties | undefined;
  /** NCCL version, for its code and kernel stacks. */
  readonly ncclVersion: string;
  /** Whether the context, and NCCL's share of it, are modelled; false when a residual already holds them. */
  readonly context: boolean;
  readonly nccl: boolean;
  readonly components: readonly Component[];
}

/** An addition that can be taken back. */
export interface ExternalStep {
  readonly bytes: Band;
  undo(): void;
}

const NOTHING: ExternalStep = { bytes: NO_BAND, undo: () => {} };

export class ExternalMemory {
  readonly #options: ExternalOptions;
  readonly #figures = new Map<string, ExternalFigure>();
  /** Figures whose size is not known; while there is one, so is the total. */
  #unknown = 0;
  #bytes: Band = NO_BAND;
  /** Largest kernel stack launched so far; undefined once a kernel without a known stack ran. */
  #stack = CONTEXT_STACK;

  constructor(options: ExternalOptions) {
    this.#options = options;
    if (options.context) this.#addContext();
    for (const component of options.components) {
      if (component.lifetime === 'persistent') this.#addComponent(component);
    }
  }

  /** Known bytes of everything. */
  get bytes(): Band {
    return this.#bytes;
  }

  /** False when something is there whose size is not known. */
  get isKnown(): boolean {
    return this.#unknown === 0;
  }

  breakdown(): ExternalFigure[] {
    return [...this.#figures.values()];
  }

  /** The first communicator of the process: NCCL's code is loaded. */
  loadNccl(): ExternalStep {
    const { gpu, ncclVersion, nccl } = this.#options;
    const key = 'nccl code';
    if (!nccl || this.#figures.has(key)) return NOTHING;
    if (gpu === undefined) return this.#add(key, unknownFigure('NCCL kernel code', 'nccl'));
    return this.#add(key, figureOf(moduleTerm(gpu, ncclVersion), 'nccl'));
  }

  /** A kernel of NCCL is launched: local memory grows to its stack if that is the largest so far. */
  launchNccl(family: KernelFamily): ExternalStep {
    const { gpu, ncclVersion, nccl } = this.#options;
    if (!nccl) return NOTHING;
    const key = 'nccl local memory';
    if (gpu === undefined) {
      return this.#figures.has(key)
        ? NOTHING
        : this.#add(key, unknownFigure('NCCL kernel local memory', 'nccl'));
    }
    const known = this.#figures.get(key);
    const stack = kernelStack(family, gpu);
    if (known !== undefined && (stack === undefined || stack <= this.#stack)) return NOTHING;
    const figure = figureOf(localMemoryTerm(family, gpu, ncclVersion), 'nccl');
    const before = this.#stack;
    this.#stack = Math.max(before, stack ?? before);
    const step = this.#replace(key, figure);
    return {
      bytes: step.bytes,
      undo: () => {
        this.#stack = before;
        step.undo();
      },
    };
  }

  /** Components bound to a phase of this name appear. */
  beginPhase(name: string): ExternalStep {
    const steps = this.#options.components
      .filter(({ lifetime }) => lifetime !== 'persistent' && lifetime.phase === name)
      .map((component) => this.#addComponent(component));
    return {
      bytes: steps.reduce((sum, step) => addBands(sum, step.bytes), NO_BAND),
      undo: () => {
        for (const step of steps) step.undo();
      },
    };
  }

  endPhase(name: string): void {
    for (const component of this.#options.components) {
      const { lifetime } = component;
      if (lifetime !== 'persistent' && lifetime.phase === name)
        this.#remove(componentKey(component));
    }
  }

  /** A ledger entry of the job or of a scenario. An id in use is replaced. */
  add(id: string, figure: ExternalFigure): ExternalStep {
    return this.#replace(`entry ${id}`, figure);
  }

  /** Returns whether there was such an entry. */
  remove(id: string): boolean {
    return this.#remove(`entry ${id}`);
  }

  #addContext(): void {
    const { gpu } = this.#options;
    if (gpu === undefined) {
      this.#add('context', unknownFigure('CUDA context', 'context'));
      return;
    }
    const { bytes, evidence, source } = contextEstimate(gpu);
    this.#add('context', {
      name: 'CUDA context',
      category: 'context',
      bytes,
      evidence,
      provenance: source,
    });
  }

  #addComponent(component: Component): ExternalStep {
    const { name, category, bytes, evidence, provenance } = component;
    const known = evidence === 'unknown' ? undefined : bytes;
    return this.#replace(componentKey(component), {
      name,
      category,
      bytes: known,
      evidence,
      provenance,
    });
  }

  #add(key: string, figure: ExternalFigure): ExternalStep {
    this.#figures.set(key, figure);
    if (figure.bytes === undefined) this.#unknown += 1;
    else this.#bytes = addBands(this.#bytes, figure.bytes);
    return { bytes: figure.bytes ?? NO_BAND, undo: () => this.#remove(key) };
  }

  #remove(key: string): boolean {
    const figure = this.#figures.get(key);
    if (figure === undefined) return false;
    this.#figures.delete(key);
    if (figure.bytes === undefined) this.#unknown -= 1;
    else this.#bytes = subtract(this.#bytes, figure.bytes);
    return true;
  }

  #replace(key: string, figure: ExternalFigure): ExternalStep {
    const before = this.#figures.get(key);
    this.#remove(key);
    this.#add(key, figure);
    return {
      bytes: subtract(figure.bytes ?? NO_BAND, before?.bytes ?? NO_BAND),
      undo: () => {
        this.#remove(key);
        if (before !== undefined) this.#add(key, before);
      },
    };
  }
}

function componentKey({ name, category }: Component): string {
  return `component ${category} ${name}`;
}

function subtract(a: Band, b: Band): Band {
  return { low: a.low - b.low, likely: a.likely - b.likely, high: a.high - b.high };
}

function unknownFigure(name: string, category: Category): ExternalFigure {
  return {
    name,
    category,
    bytes: undefined,
    evidence: 'unknown',
    provenance: 'the GPU was given as a number of bytes only',
  };
}

function figureOf(
  { name, bytes, evidence, source }: MemoryTerm,
  category: Category,
): ExternalFigure {
  return { name, category, bytes, evidence, provenance: source };
}

/** A ledger entry whose size is exact. */
export function exactFigure(
  name: string,
  category: Category,
  bytes: number,
  evidence: Evidence,
  provenance: string,
): ExternalFigure {
  return {
    name,
    category,
    bytes: evidence === 'unknown' ? undefined : exactly(bytes),
    evidence,
    provenance,
  };
}
