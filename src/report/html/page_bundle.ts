// The page's script and style, bundled into one text each. An installed package has them ready (`npm run build`); from the sources
// they are bundled now, with esbuild, which is a development dependency.

import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export interface PageBundle {
  readonly script: string;
  readonly style: string;
}

/** The bundle of this installation. */
export async function pageBundle(): Promise<PageBundle> {
  const ready = new URL('./page.json', import.meta.url);
  if (existsSync(ready)) return JSON.parse(readFileSync(ready, 'utf8')) as PageBundle;
  return bundlePage();
}

/** Bundles the sources of the page. */
export async function bundlePage(): Promise<PageBundle> {
  const { build } = await import('esbuild');
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL('./page/main.tsx', import.meta.url))],
    bundle: true,
    minify: true,
    write: false,
    outdir: 'out',
    format: 'iife',
    target: 'es2022',
    legalComments: 'none',
    tsconfig: fileURLToPath(new URL('./page/tsconfig.json', import.meta.url)),
  });
  const textOf = (ending: string) =>
    outputFiles.find(({ path }) => path.endsWith(ending))?.text ?? '';
  return { script: textOf('.js'), style: textOf('.css') };
}
