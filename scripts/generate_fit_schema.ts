// Writes docs/fit-spec.schema.json from the zod schema of fit specifications.

import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { specSchema } from '../src/fit/spec.ts';

export function fitSpecSchema(): string {
  const schema = z.toJSONSchema(specSchema, { io: 'input', unrepresentable: 'any' });
  return `${JSON.stringify(schema, undefined, 2)}\n`;
}

const target = fileURLToPath(new URL('../docs/fit-spec.schema.json', import.meta.url));
if (process.argv[1] === fileURLToPath(import.meta.url)) writeFileSync(target, fitSpecSchema());
