// Every command of the program. One file in commands/ each; a new one is imported and listed here.

import type { Command } from './command.ts';
import { gpus } from './commands/gpus.ts';
import { report } from './commands/report.ts';

export const COMMANDS: readonly Command[] = [report, gpus];
