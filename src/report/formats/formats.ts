// Every export format of the program.

import { csv } from './csv.ts';
import type { ExportFormat } from './format.ts';
import { memoryViz } from './memory_viz.ts';
import { perfetto } from './perfetto.ts';
import { speedscope } from './speedscope.ts';

export const EXPORT_FORMATS: readonly ExportFormat[] = [memoryViz, perfetto, speedscope, csv];
