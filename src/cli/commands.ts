// Every command of the program. One file in commands/ each; a new one is imported and listed here.

import type { Command } from './command.ts';
import { allocatorCommands } from './commands/allocator.ts';
import { cacheList, cachePrune } from './commands/cache.ts';
import { calibrate } from './commands/calibrate.ts';
import { capture } from './commands/capture.ts';
import { compare } from './commands/compare.ts';
import { doctor } from './commands/doctor.ts';
import { exportCommand } from './commands/export.ts';
import { fit } from './commands/fit.ts';
import { fitUnit } from './commands/fit_unit.ts';
import { gpus } from './commands/gpus.ts';
import { nccl } from './commands/nccl.ts';
import { report } from './commands/report.ts';
import { setup } from './commands/setup.ts';
import { trace } from './commands/trace.ts';

export const COMMANDS: readonly Command[] = [
  trace,
  report,
  compare,
  capture,
  calibrate,
  exportCommand,
  fit,
  cacheList,
  cachePrune,
  fitUnit,
  setup,
  doctor,
  gpus,
  nccl,
  ...allocatorCommands,
];
