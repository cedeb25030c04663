// `npm run accuracy -- --truth FILE --checkout DIR`: runs measured jobs without a GPU, compares, and writes the table.
//
// Results go to a JSON-lines file beside the table, one line as each case ends; `--resume` skips the cases that are there.

import { appendFile, readFile, rm, writeFile } from 'node:fs/promises';
import { Command, InvalidArgumentError } from 'commander';
import pLimit from 'p-limit';
import { ensureEnvironment } from '../src/sidecar/environment.ts';
import { type CaseResult, caseResultSchema, runCase } from './accuracy/case_result.ts';
import { readMegatronGoldens } from './accuracy/megatron_goldens.ts';
import { recordingOf } from './accuracy/recorded.ts';
import { accuracyMarkdown, caseLine } from './accuracy/report.ts';
import { readTorchTitanPublished } from './accuracy/torchtitan_published.ts';
import type { Truth, TruthReader } from './accuracy/truth.ts';

const READERS: readonly TruthReader[] = [readMegatronGoldens, readTorchTitanPublished];

function count(text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw new InvalidArgumentError('a whole number');
  return value;
}

function pair(text: string, before: Record<string, string>): Record<string, string> {
  const [name, ...value] = text.split('=');
  if (!name || value.length === 0) throw new InvalidArgumentError('NAME=VALUE');
  return { ...before, [name]: value.join('=') };
}

const program = new Command('accuracy')
  .requiredOption('--truth <file>', 'measured jobs')
  .requiredOption('--checkout <dir>', 'checkout of the framework')
  .option('--filter <regex>', 'only cases whose id matches', '')
  .option('--every <n>', 'only every n-th case of what the filter leaves', count, 1)
  .option('--jobs <n>', 'cases at a time', count, 1)
  .option('--resume', 'keep the results that are there')
  .option('--option <name=value>', 'an option of the adapter, for all cases (repeatable)', pair, {})
  .option('--steps <n>', 'steps to trace, instead of the reader’s own number', count)
  .option('--keep <dir>', 'keep the traces, with stacks')
  .option('--results <file>', 'JSON lines, one a case; default: beside --out')
  .option('--out <file>', 'the table, Markdown', 'docs/accuracy.md')
  .option('--report-only', 'write the table from the results that are there')
  .parse();
const options = program.opts<{
  truth: string;
  checkout: string;
  filter: string;
  every: number;
  jobs: number;
  resume?: boolean;
  option: Record<string, string>;
  steps?: number;
  keep?: string;
  results?: string;
  out: string;
  reportOnly?: boolean;
}>();

const document: unknown = JSON.parse(await readFile(options.truth, 'utf8'));
const truth = READERS.map((reader) => reader(document)).find((found) => found !== undefined);
if (truth === undefined) throw new Error(`${options.truth} is of no format that is known here`);

const resultsPath = options.results ?? options.out.replace(/(\.md)?$/, '.jsonl');
const known = options.resume || options.reportOnly ? await readResults(resultsPath) : new Map();
if (!options.resume && !options.reportOnly) await rm(resultsPath, { force: true });
if (!options.reportOnly) await runAll(truth, known);
await writeFile(options.out, accuracyMarkdown(truth, [...known.values()]));
console.log(`\n${options.out}`);

async function readResults(path: string): Promise<Map<string, CaseResult>> {
  const text = await readFile(path, 'utf8').catch(() => '');
  const results = text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => caseResultSchema.parse(JSON.parse(line)));
  return new Map(results.map((result) => [result.id, result]));
}

async function runAll(
  { cases, asRecorded }: Truth,
  results: Map<string, CaseResult>,
): Promise<void> {
  const environment = await ensureEnvironment({ env: process.env });
  const pattern = new RegExp(options.filter);
  const chosen = cases
    .filter(({ id }) => pattern.test(id))
    .filter((_, index) => index % options.every === 0)
    .filter(({ id }) => !results.has(id));
  const limit = pLimit(options.jobs);
  await Promise.all(
    chosen.map((one) =>
      limit(async () => {
        const known = one.recorded && (await recordingOf(options.checkout, one.recorded));
        const dated = known && asRecorded ? asRecorded(one, known) : one;
        const chosen = {
          ...dated,
          steps: options.steps ?? dated.steps,
          options: { ...dated.options, ...options.option },
        };
        const result = await runCase(chosen, {
          checkout: options.checkout,
          environment,
          keep: options.keep,
        });
        results.set(one.id, result);
        await appendFile(resultsPath, `${JSON.stringify(result)}\n`);
        console.log(caseLine(result));
      }),
    ),
  );
}
