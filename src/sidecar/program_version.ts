import { createRequire } from 'node:module';

/** Version of this package, from package.json. */
export function programVersion(): string {
  const { version } = createRequire(import.meta.url)('../../package.json') as { version: string };
  return version;
}
