import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** A folder that ships beside `src/` and `dist/`: `python`, `adapters`, `examples`. */
export function packageFolder(name: string): string {
  return join(dirname(fileURLToPath(import.meta.url)), '..', '..', name);
}
