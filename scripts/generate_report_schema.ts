// Writes docs/report.schema.json from the zod schema of the JSON report. Run by `npm run generate`.

import { writeFileSync } from 'node:fs';
import { reportJsonSchema } from '../src/report/json_schema.ts';

writeFileSync(
  new URL('../docs/report.schema.json', import.meta.url),
  `${JSON.stringify(reportJsonSchema(), null, 2)}\n`,
);
