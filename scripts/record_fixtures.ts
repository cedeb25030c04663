// Records small traces of measured Megatron-LM jobs for CI, where there is no checkout: `tests/fixtures/megatron/*.mtrace` and the figures
// that were measured beside them.
//
//   tsx scripts/record_fixtures.ts TRUTH.json CHECKOUT
//
// Traces are kept without stacks: a fixture speaks of no machine's paths.

import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { inflateRawSync } from 'node:zlib';
import { unpack } from 'msgpackr';
import { findGpu } from '../src/device/gpus.ts';
import { decodeBatch, encodeBatch } from '../src/protocol/codec.ts';
import type { EventTuple } from '../src/protocol/events.ts';
import { ensureEnvironment } from '../src/sidecar/environment.ts';
import { programVersion } from '../src/sidecar/program_version.ts';
import { traceRun } from '../src/sidecar/trace_run.ts';
import { RecordKind, traceFooterSchema } from '../src/trace/file_format.ts';
import { readTraceHeader } from '../src/trace/reader.ts';
import { readRecords } from '../src/trace/record_stream.ts';
import { TraceWriter } from '../src/trace/writer.ts';
import { readMegatronGoldens } from './accuracy/megatron_goldens.ts';

/** One of each kind: both layer implementations, three GPUs, pipeline, context parallelism, distributed optimizer. */
const CASES = [
  'gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files/dev_dgx_h100',
  'gpt/gpt3_mcore_tp4_pp1/dev_dgx_a100',
  'gpt/gpt3_mcore_tp1_pp2_resume_torch_dist/dev_dgx_gb200',
  'gpt/gpt3_mcore_te_tp2_pp2_cp2_calculate_per_token_loss/dev_dgx_h100',
];

const [truthFile, checkout] = process.argv.slice(2);
const truth = readMegatronGoldens(JSON.parse(await readFile(truthFile, 'utf8')));
if (truth === undefined) throw new Error(`${truthFile} holds no Megatron-LM golden values`);
const folder = fileURLToPath(new URL('../tests/fixtures/megatron', import.meta.url));
await mkdir(folder, { recursive: true });
const environment = await ensureEnvironment({ env: process.env });
const index = [];
for (const id of CASES) {
  const job = truth.cases.find((found) => found.id === id);
  if (job === undefined) throw new Error(`${id} is not in ${truthFile}`);
  const file = `${id.replaceAll('/', '__')}.mtrace`;
  await traceRun(
    {
      framework: job.framework,
      checkout,
      argv: job.argv,
      cwd: '/',
      world: job.world,
      rank: job.rank,
      gpusPerNode: job.gpusPerNode,
      gpu: findGpu(job.gpu),
      steps: job.steps,
      stackDepth: 0,
      options: job.options,
      out: join(folder, file),
    },
    { environment, env: { ...process.env, ...job.env }, memtrackerVersion: programVersion() },
  );
  await withoutOutput(join(folder, file));
  index.push({ id, file, measured: job.measured, measures: job.measures });
  console.log(id);
}
const document = { source: truth.source, checkout: truth.commit, cases: index };
await writeFile(join(folder, 'index.json'), `${JSON.stringify(document, undefined, 2)}\n`);

/** Writes the trace again without what names folders of the machine that recorded it: the job's output, paths of packages. */
async function withoutOutput(path: string): Promise<void> {
  const header = await readTraceHeader(path);
  const records = [];
  for await (const record of readRecords(path)) records.push(record);
  const writer = await TraceWriter.create(path, header);
  for (const { kind, payload } of records) {
    if (kind === RecordKind.batch) {
      const batch = decodeBatch(inflateRawSync(payload));
      if (!batch.ok) throw new Error(batch.error);
      const events = batch.value.events.map(
        (event) => event.map(withoutFolder) as unknown as EventTuple,
      );
      await writer.batch(encodeBatch({ ...batch.value, events }));
    }
    if (kind === RecordKind.footer) {
      await writer.close({ ...traceFooterSchema.parse(unpack(payload)), stderr_tail: '' });
    }
  }
}

/** A package's file without the folder that the package is installed in. */
function withoutFolder(field: unknown): unknown {
  return typeof field === 'string' ? field.replace(/\S*\/site-packages\//g, '') : field;
}
