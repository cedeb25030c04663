// `npm run bench [-- NAME…]`: runs the benchmarks of scripts/bench/ one after the other, prints a table of each, and exits with
// 1 when a bound is broken.

import { readdir, readFile } from 'node:fs/promises';
import { tableLines } from '../src/report/table.ts';
import { type Benchmark, type Measurement, passes } from './bench/benchmark.ts';

const folder = new URL('bench/', import.meta.url);

function isBenchmark(value: unknown): value is Benchmark {
  return typeof value === 'object' && value !== null && 'name' in value && 'run' in value;
}

/** The benchmarks of the folder. A file is one when it says so; programs of their own lie there too. */
async function load(): Promise<Benchmark[]> {
  const found: Benchmark[] = [];
  for (const file of (await readdir(folder)).sort()) {
    const url = new URL(file, folder);
    if (!file.endsWith('.ts') || !/^export const benchmark\b/m.test(await readFile(url, 'utf8'))) {
      continue;
    }
    const module = (await import(url.href)) as Record<string, unknown>;
    if (!isBenchmark(module.benchmark)) throw new Error(`${file} exports no benchmark`);
    found.push(module.benchmark);
  }
  return found;
}

function format(value: number): string {
  return value.toLocaleString('en-US', { maximumFractionDigits: value < 100 ? 2 : 0 });
}

function row(measurement: Measurement): string[] {
  const { what, value, unit, limit } = measurement;
  const bound = limit === undefined ? '' : `at ${limit.at} ${format(limit.value)}`;
  const verdict = limit === undefined ? '' : passes(measurement) ? 'ok' : 'BROKEN';
  return [what, format(value), unit, bound, verdict];
}

const asked = process.argv.slice(2);
const benchmarks = (await load()).filter(({ name }) => asked.length === 0 || asked.includes(name));
if (benchmarks.length === 0) throw new Error(`no benchmark is named ${asked.join(', ')}`);
for (const { name, summary, run } of benchmarks) {
  console.log(`\n${name}: ${summary}`);
  const result = await run();
  if (typeof result === 'string') {
    console.log(`SKIPPED: ${result}`);
    continue;
  }
  const columns = [
    { head: 'Measured' },
    { head: 'Value', align: 'right' },
    { head: 'Unit' },
    { head: 'Bound' },
    { head: '' },
  ] as const;
  console.log(tableLines(columns, result.map(row), 120).join('\n'));
  if (!result.every(passes)) process.exitCode = 1;
}
