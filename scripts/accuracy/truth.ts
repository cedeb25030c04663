// Measured jobs: what a truth file says, whatever its format, in one model. A reader is a function that returns undefined for
// "not my format" and throws for "my format, broken".

import type { Bytes } from '../../src/base/bytes.ts';
import type { RecordedFigure, Recording } from './recorded.ts';

/** What was measured: torch.cuda.memory_allocated, the peak of it, or the peak of memory_reserved. */
export type Quantity = 'allocated' | 'peak_allocated' | 'peak_reserved';

/**
 * `first`, `second`: at the end of that step. `last`: at the end of the last one that was measured, which may be the hundredth:
 * where streams run side by side, a measured peak creeps up over the steps; an estimate is of the steps that are traced.
 */
export const WHENS = ['first', 'second', 'last'] as const;
export type When = (typeof WHENS)[number];

export interface Measure {
  readonly quantity: Quantity;
  readonly when: When;
  readonly bytes: Bytes;
}

export interface TruthCase {
  readonly id: string;
  /** For the summary: `gpt, H100`. */
  readonly group: string;
  readonly framework: string;
  /** The framework's arguments. */
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** A name of src/device/gpus.ts. */
  readonly gpu: string;
  readonly world: number;
  readonly rank: number;
  readonly gpusPerNode: number;
  /** Steps to trace. */
  readonly steps: number;
  readonly options: Readonly<Record<string, string | number | boolean>>;
  readonly measures: readonly Measure[];
  /** Year and month of the measurement; older ones ran older code than the checkout. */
  readonly measured: string;
  /** Where the framework's own history tells when the figure was recorded. */
  readonly recorded?: RecordedFigure;
  /** The software that it was measured with, where it is known: `NGC 26.04`. */
  readonly software?: string;
}

export interface Truth {
  /** Name of the format. */
  readonly format: string;
  readonly source: string;
  /** The commit of the framework that the figures belong to. */
  readonly commit: string | undefined;
  readonly cases: readonly TruthCase[];
  /** The case with what its recording says of the libraries. */
  readonly asRecorded?: (one: TruthCase, recording: Recording) => TruthCase;
  /** The case with the arguments of a document of its recording's commit. */
  readonly withArguments?: (one: TruthCase, document: unknown) => TruthCase;
}

export type TruthReader = (document: unknown) => Truth | undefined;
