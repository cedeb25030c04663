// The HTML report: one file that needs no network and opens by a double-click. Page, style, libraries and data are inside.

import type { Analysis } from '../../attribution/analysis.ts';
import { pageBundle } from './page_bundle.ts';
import { packPayload, titleOf } from './payload_writer.ts';

/** @param beside other runs that are shown beside the first and over it: ranks of the same job, or another configuration. */
export async function htmlReport(
  analysis: Analysis,
  beside: readonly Analysis[] = [],
): Promise<string> {
  const { script, style } = await pageBundle();
  const { json, columns } = packPayload(analysis, beside);
  const title = escapeHtml(`memtracker: ${titleOf(analysis)}`);
  return [
    '<!doctype html>',
    '<html lang="en">',
    '<head>',
    '<meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    // Nothing is loaded from anywhere, and the browser is told so.
    `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">`,
    `<title>${title}</title>`,
    `<style>${style.replaceAll('</', '<\\/')}</style>`,
    '</head>',
    '<body>',
    `<div id="page"><p class="loading">${title}: reading the data …</p></div>`,
    `<script type="application/octet-stream" id="payload-json">${json}</script>`,
    `<script type="application/octet-stream" id="payload-columns">${columns}</script>`,
    `<script>${script.replaceAll('</script', '<\\/script')}</script>`,
    '</body>',
    '</html>',
    '',
  ].join('\n');
}

function escapeHtml(text: string): string {
  return text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}
