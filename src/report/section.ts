// What a report says, before it is text or Markdown: sections of sentences and tables.

import type { TableColumn } from './table.ts';

export interface ReportTable {
  readonly columns: readonly TableColumn[];
  readonly rows: readonly (readonly string[])[];
}

export interface Sentence {
  readonly text: string;
  readonly tone: 'plain' | 'strong' | 'warning';
}

export interface Section {
  /** Absent for what needs no heading. */
  readonly title?: string;
  readonly sentences: readonly Sentence[];
  readonly tables: readonly ReportTable[];
  /** Long tables that a pull-request comment folds away. */
  readonly folded?: boolean;
}

export function plain(text: string): Sentence {
  return { text, tone: 'plain' };
}

export function strong(text: string): Sentence {
  return { text, tone: 'strong' };
}

export function warning(text: string): Sentence {
  return { text, tone: 'warning' };
}
