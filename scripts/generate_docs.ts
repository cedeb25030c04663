// Writes docs/cli.md from the option tables. Run by `npm run generate`; `npm test` fails when the file is stale.

import { writeFileSync } from 'node:fs';
import { COMMANDS } from '../src/cli/commands.ts';
import { commandLineDocs } from '../src/cli/docs.ts';
import { loadAdapters } from '../src/sidecar/adapter.ts';

writeFileSync(
  new URL('../docs/cli.md', import.meta.url),
  commandLineDocs(COMMANDS, loadAdapters()),
);
