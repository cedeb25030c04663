// Bundles the HTML report's page into dist, beside the code that reads it. Part of `npm run build`.

import { mkdirSync, writeFileSync } from 'node:fs';
import { bundlePage } from '../src/report/html/page_bundle.ts';

const folder = new URL('../dist/report/html/', import.meta.url);
mkdirSync(folder, { recursive: true });
writeFileSync(new URL('page.json', folder), JSON.stringify(await bundlePage()));
