// What an export format is. One file in this folder each; formats.ts lists them.

import type { Analysis, DeviceAnalysis, MeasuredFacts } from '../../attribution/analysis.ts';
import type { MemoryKind } from '../../timeline/timeline.ts';

export interface ExportOptions {
  /** Whose peak is exported, for formats of one instant. */
  readonly at: MemoryKind | number;
  /** For csv: which table. */
  readonly table: CsvTable;
}

export const CSV_TABLES = ['timeline', 'phases', 'tensors', 'allocations'] as const;
export type CsvTable = (typeof CSV_TABLES)[number];

export interface ExportFormat {
  readonly name: string;
  /** Of a file in this format, without a dot. */
  readonly extension: string;
  /** What opens it. */
  readonly description: string;
  /** The whole file, in parts that are written one after the other. */
  write(
    analysis: Analysis,
    device: DeviceAnalysis,
    options: ExportOptions,
  ): Iterable<string | Uint8Array>;
  /** For a format that a measured run was read from: what was recorded, as it is. */
  readonly recorded?: (measured: MeasuredFacts) => AsyncIterable<Uint8Array>;
}
