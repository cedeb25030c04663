#!/usr/bin/env node
// The `memtracker` program: runs one command line and exits with its status.

import { ExitStatus } from '../base/errors.ts';
import { programVersion } from '../sidecar/program_version.ts';
import { runCommandLine } from './command_line.ts';
import { COMMANDS } from './commands.ts';

// A reader that goes away (`memtracker report … | head`) is no failure of ours.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(ExitStatus.done);
  throw error;
});

process.exitCode = await runCommandLine(COMMANDS, {
  argv: process.argv.slice(2),
  env: process.env,
  cwd: process.cwd(),
  stdout: process.stdout,
  stderr: process.stderr,
  version: programVersion(),
  onInterrupt: (listener) => {
    for (const name of ['SIGINT', 'SIGTERM'] as const) {
      let count = 0;
      process.on(name, () => {
        count++;
        if (count > 1) process.exit(ExitStatus.interrupted);
        listener();
      });
    }
  },
});
