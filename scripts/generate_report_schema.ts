// Writes the JSON schemas of reports and comparisons from their zod schemas. Run by `npm run generate`.

import { writeFileSync } from 'node:fs';
import { compareJsonSchema } from '../src/report/compare_document.ts';
import { reportJsonSchema } from '../src/report/json_schema.ts';

for (const [name, schema] of [
  ['report', reportJsonSchema()],
  ['compare', compareJsonSchema()],
] as const) {
  writeFileSync(
    new URL(`../docs/${name}.schema.json`, import.meta.url),
    `${JSON.stringify(schema, null, 2)}\n`,
  );
}
