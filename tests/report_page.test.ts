// The HTML report in a real browser: its numbers are those of the JSON report, a click lists what was live there, the keys work,
// nothing is asked of any network. Needs Chromium (MEMTRACKER_CHROMIUM, else Debian's).

import { existsSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { type Browser, chromium, type Page } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { analyze } from '../src/attribution/analysis.ts';
import { formatBytes } from '../src/base/bytes.ts';
import { reportDocument } from '../src/report/document.ts';
import { htmlReport } from '../src/report/html/html_report.ts';
import { liveAt } from '../src/timeline/live_set.ts';
import { MEMORY_KINDS } from '../src/timeline/timeline.ts';
import { MILLION_EVENT_JOB, writeSyntheticTrace } from './traces/synthetic.ts';

const candidates = [process.env.MEMTRACKER_CHROMIUM, '/usr/bin/chromium', '/usr/bin/google-chrome'];
const executablePath = candidates.find((path) => path !== undefined && existsSync(path));
if (executablePath === undefined) {
  console.warn('SKIPPED: no Chromium. apt-get install chromium, or set MEMTRACKER_CHROMIUM.');
}
const inBrowser = test.skipIf(executablePath === undefined);

const folder = mkdtempSync(join(tmpdir(), 'memtracker-page-'));
const trace = join(folder, 'run.mtrace');
const other = join(folder, 'other.mtrace');
let browser: Browser;
let analysis: Awaited<ReturnType<typeof analyze>>;
let html: string;

beforeAll(async () => {
  if (executablePath === undefined) return;
  browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
  await writeSyntheticTrace(trace, { steps: 3, leakMiB: 5 });
  await writeSyntheticTrace(other, { steps: 3, savedMiB: 24, rank: 4 });
  analysis = await analyze(trace);
  html = await htmlReport(analysis, [await analyze(other)]);
});

afterAll(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Opens a page as a double-click would, and fails on any error of it and on any request. */
async function open(content: string): Promise<Page> {
  const path = join(folder, `${Math.random().toString(36).slice(2)}.html`);
  writeFileSync(path, content);
  const page = await browser.newPage({ viewport: { width: 1400, height: 900 } });
  const wrong: string[] = [];
  page.on('pageerror', (error) => wrong.push(error.message));
  page.on('console', (message) => {
    if (message.type() === 'error') wrong.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith('file:') && !request.url().startsWith('data:')) {
      wrong.push(`asks for ${request.url()}`);
    }
  });
  await page.goto(pathToFileURL(path).href);
  await page.waitForSelector('html[data-ready]', { timeout: 30_000 });
  expect(wrong).toEqual([]);
  return page;
}

inBrowser('every peak on the page is that of the JSON report', async () => {
  const page = await open(html);
  const { peak } = reportDocument(analysis).devices['cuda:0'];
  for (const kind of MEMORY_KINDS) {
    const cell = page.locator(`[data-test=peaks] [data-kind=${kind}]`);
    const { bytes } = peak[kind];
    expect(await cell.getAttribute('data-bytes')).toBe(bytes === null ? '' : String(bytes));
    expect(await cell.textContent()).toBe(bytes === null ? 'unknown' : formatBytes(bytes));
  }
  await page.close();
});

inBrowser('owners at the peak are those of the JSON report, on every view', async () => {
  const page = await open(html);
  const { at_peak } = reportDocument(analysis).devices['cuda:0'];
  for (const { title, bytes } of at_peak.owners) {
    const cell = page.locator(`[data-test=owners] [data-owner="${title}"]`);
    expect(await cell.getAttribute('data-bytes')).toBe(String(bytes));
  }
  await page.keyboard.press('5');
  const count = page.locator('[data-test=tensor-count]');
  expect(await count.getAttribute('data-count')).toBe(String(at_peak.tensor_count));
  expect(await count.getAttribute('data-bytes')).toBe(String(at_peak.allocated));
  await page.keyboard.press('3');
  const flame = page.locator('[data-test=flame]');
  expect(await flame.getAttribute('data-bytes')).toBe(String(at_peak.allocated));
  await page.keyboard.press('f');
  expect(await flame.getAttribute('data-bytes')).toBe(String(at_peak.allocated));
  await page.keyboard.press('4');
  const groups = await page
    .locator('[data-test=groups] td[data-bytes]')
    .evaluateAll((cells) => cells.map((cell) => Number(cell.getAttribute('data-bytes'))));
  expect(groups.reduce((sum, bytes) => sum + bytes, 0)).toBe(at_peak.allocated);
  await page.close();
});

inBrowser('a click on the timeline lists the tensors that were live there', async () => {
  const page = await open(html);
  await page.keyboard.press('2');
  const plot = page.locator('.u-over');
  const box = await plot.boundingBox();
  if (box === null) throw new Error('no plot');
  for (const share of [0.2, 0.55, 0.9]) {
    await page.mouse.click(box.x + box.width * share, box.y + box.height / 2);
    const event = Number(await page.locator('[data-test=instant]').textContent());
    const { timeline } = analysis.devices[0];
    const live = liveAt(timeline, event);
    const count = page.locator('[data-test=tensor-count]');
    expect(await count.getAttribute('data-count')).toBe(String(live.length));
    const allocated = page.locator('[data-test=allocated]');
    expect(await allocated.getAttribute('data-bytes')).toBe(
      String(timeline.series.allocated[event]),
    );
    const shown = await page
      .locator('[data-test=tensors] [data-storage]')
      .evaluateAll((rows) => rows.map((row) => Number(row.getAttribute('data-storage'))));
    const expected = [...live].sort((a, b) => b.block - a.block || a.bornAt - b.bornAt);
    expect(shown).toEqual(expected.slice(0, shown.length).map(({ storage }) => storage));
  }
  await page.close();
});

inBrowser('the table sorts and filters, and a row opens its details', async () => {
  const page = await open(html);
  await page.keyboard.press('/');
  await page.locator('#filter').fill('activation layers.2');
  expect(await page.locator('[data-test=tensor-count]').getAttribute('data-count')).toBe('2');
  await page.locator('[data-test=tensors] [data-storage]').first().click();
  const details = await page.locator('[data-test=details]').textContent();
  expect(details).toContain('activations saved for backward: layers.2.feed_forward');
  expect(details).toContain('model.py:160');
  await page.keyboard.press('Escape');
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: /^Module/ }).click();
  const modules = await page
    .locator('[data-test=tensors] [data-storage] .column-module')
    .allTextContents();
  expect(modules).toEqual([...modules].sort((a, b) => a.localeCompare(b)));
  await page.close();
});

inBrowser('every phase has the peak of the JSON report', async () => {
  const page = await open(html);
  await page.keyboard.press('6');
  for (const fold of await page.locator('button.fold').all()) await fold.click();
  const { phases } = reportDocument(analysis);
  const shown = await page
    .locator('[data-test=phases] td[data-phase]')
    .evaluateAll((cells) =>
      cells.map((cell) => [cell.getAttribute('data-phase'), cell.getAttribute('data-bytes')]),
    );
  const sorted = (rows: unknown[]) => rows.map((row) => JSON.stringify(row)).sort();
  expect(sorted(shown)).toEqual(
    sorted(phases.map(({ path, peak }) => [path, String(peak.allocated.bytes)])),
  );
  await page.close();
});

inBrowser('ranks stand beside each other and one run is drawn over the other', async () => {
  const page = await open(html);
  await page.keyboard.press('7');
  const peaks = await page
    .locator('[data-test=ranks] [data-kind=allocated]')
    .evaluateAll((cells) => cells.map((cell) => Number(cell.getAttribute('data-bytes'))));
  const second = reportDocument(await analyze(other)).devices['cuda:0'];
  expect(peaks).toEqual([
    analysis.devices[0].timeline.peaks.allocated.bytes,
    second.peak.allocated.bytes,
  ]);
  expect(await page.locator('[data-test=overlay] canvas').count()).toBe(1);
  await page.close();
});

inBrowser('keys step, jump, zoom and turn the page dark', async () => {
  const page = await open(html);
  await page.keyboard.press('2');
  const instant = () => page.locator('[data-test=instant]').textContent();
  const peak = analysis.devices[0].timeline.peaks.allocated.event;
  expect(await instant()).toBe(String(peak));
  await page.keyboard.press('ArrowRight');
  expect(await instant()).toBe(String(peak + 1));
  await page.keyboard.press('p');
  expect(await instant()).toBe(String(peak));
  const before = await page.locator('[data-test=window]').textContent();
  await page.keyboard.press('+');
  expect(await page.locator('[data-test=window]').textContent()).not.toBe(before);
  await page.keyboard.press('d');
  expect(await page.evaluate('document.documentElement.dataset.theme')).toBe('dark');
  expect(await page.evaluate('getComputedStyle(document.body).backgroundColor')).toBe(
    'rgb(20, 24, 30)',
  );
  await page.keyboard.press('?');
  expect(await page.getByRole('dialog').isVisible()).toBe(true);
  await page.close();
});

inBrowser('a run that does not fit shows where it ends', async () => {
  const full = await analyze(trace, { gpu: '400MiB' });
  const page = await open(await htmlReport(full));
  expect(await page.locator('p.warning').textContent()).toContain('Does not fit');
  await page.close();
});

inBrowser(
  'a million events open within seconds, with exact peaks',
  { timeout: 180_000 },
  async () => {
    const large = join(folder, 'million.mtrace');
    await writeSyntheticTrace(large, MILLION_EVENT_JOB);
    const run = await analyze(large);
    const content = await htmlReport(run);
    const path = join(folder, 'million.html');
    writeFileSync(path, content);
    expect(statSync(path).size).toBeLessThan(5 * 1024 * 1024);
    const page = await open(content);
    const paint = (await page.evaluate(
      `performance.getEntriesByName('first-contentful-paint')[0].startTime`,
    )) as number;
    expect(paint).toBeLessThan(2000);
    await page.keyboard.press('2');
    const { allocated } = run.devices[0].timeline.peaks;
    expect(await page.locator('[data-test=allocated]').getAttribute('data-bytes')).toBe(
      String(allocated.bytes),
    );
    await page.close();
  },
);
