// `npm run accuracy -- --truth FILE --checkout DIR`: runs measured jobs without a GPU, compares, and writes the table.
//
// Results go to a JSON-lines file beside the table, one line as each case ends; `--resume` skips the cases that are there.

import { appendFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { Command, InvalidArgumentError } from 'commander';
import pLimit from 'p-limit';
import { scalar } from '../src/cli/option.ts';
import { ensureEnvironment } from '../src/sidecar/environment.ts';
import { type CaseResult, caseResultSchema, runCase } from './accuracy/case_result.ts';
import { readMegatronGoldens } from './accuracy/megatron_goldens.ts';
import { argumentsAt, recordingOf, scriptIn, softwareOf } from './accuracy/recorded.ts';
import { accuracyMarkdown, caseLine } from './accuracy/report.ts';
import { readTorchTitanPublished } from './accuracy/torchtitan_published.ts';
import type { Truth, TruthCase, TruthReader } from './accuracy/truth.ts';

const READERS: readonly TruthReader[] = [readMegatronGoldens, readTorchTitanPublished];

function count(text: string): number {
  const value = Number(text);
  if (!Number.isInteger(value) || value < 1) throw new InvalidArgumentError('a whole number');
  return value;
}

type Options = Readonly<Record<string, string | number | boolean>>;

function pair(text: string, before: Options): Options {
  const [name, ...value] = text.split('=');
  if (!name || value.length === 0) throw new InvalidArgumentError('NAME=VALUE');
  return { ...before, [name]: scalar(value.join('=')) };
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
  .option(
    '--recorded <dir>',
    'trace each case with the commit of the checkout that recorded it, its arguments and, given --transformer-engine, the ' +
      'TransformerEngine that it names; work trees are put in the folder',
  )
  .option('--transformer-engine <dir>', 'repository of TransformerEngine, for --recorded')
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
  option: Options;
  steps?: number;
  recorded?: string;
  transformerEngine?: string;
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
await writeFile(
  options.out,
  accuracyMarkdown(truth, [...known.values()], options.recorded ? 'recorded software' : 'checkout'),
);
console.log(`\n${options.out}`);

async function readResults(path: string): Promise<Map<string, CaseResult>> {
  const text = await readFile(path, 'utf8').catch(() => '');
  const results = text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => caseResultSchema.parse(JSON.parse(line)));
  return new Map(results.map((result) => [result.id, result]));
}

async function runAll(truth: Truth, results: Map<string, CaseResult>): Promise<void> {
  const environment = await ensureEnvironment({ env: process.env });
  if (options.keep !== undefined) await mkdir(options.keep, { recursive: true });
  const pattern = new RegExp(options.filter);
  const chosen = truth.cases
    .filter(({ id }) => pattern.test(id))
    .filter((_, index) => index % options.every === 0)
    .filter(({ id }) => !results.has(id));
  const limit = pLimit(options.jobs);
  await Promise.all(
    chosen.map((one) =>
      limit(async () => {
        const { case: prepared, checkout } = await prepare(one, truth);
        const result = await runCase(prepared, { checkout, environment, keep: options.keep });
        results.set(one.id, result);
        await appendFile(resultsPath, `${JSON.stringify(result)}\n`);
        console.log(caseLine(result));
      }),
    ),
  );
}

/** The case with what its recording and the command line say, and the checkout to trace it with. */
async function prepare(
  one: TruthCase,
  { asRecorded, withArguments }: Truth,
): Promise<{ case: TruthCase; checkout: string }> {
  const { checkout, recorded, transformerEngine } = options;
  const recording = one.recorded && (await recordingOf(checkout, one.recorded));
  let prepared = one;
  let traced = checkout;
  let library: Record<string, string> = {};
  if (recorded !== undefined && recording && one.recorded) {
    const software = await softwareOf(recording, { checkout, transformerEngine, folder: recorded });
    traced = software.checkout;
    if (software.transformerEngine !== undefined)
      library = { transformer_engine: software.transformerEngine };
    const document = await argumentsAt(checkout, recording, one.recorded.arguments);
    prepared = withArguments?.(prepared, document) ?? prepared;
    const [script, ...rest] = prepared.argv;
    prepared = { ...prepared, argv: [await scriptIn(traced, script), ...rest] };
  }
  if (recording && asRecorded) prepared = asRecorded(prepared, recording);
  return {
    checkout: traced,
    case: {
      ...prepared,
      steps: options.steps ?? prepared.steps,
      options: { ...prepared.options, ...library, ...options.option },
    },
  };
}
