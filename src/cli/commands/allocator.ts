import { createReadStream } from 'node:fs';
import { type FileHandle, mkdir, open } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { allocatorConfKeys, explainAllocatorConf } from '../../allocator/config.ts';
import { replayTrace } from '../../allocator/replay_trace.ts';
import { UserError } from '../../base/errors.ts';
import { type Command, defineCommand } from '../command.ts';
import { integer, positionals, text } from '../option.ts';

interface ReplayConfig {
  readonly traces: readonly string[];
  readonly out: string | undefined;
  readonly outDir: string | undefined;
  readonly layoutEvery: number;
}

const replay = defineCommand<ReplayConfig>({
  name: 'allocator replay',
  summary: 'Replay allocator traces and print the state after each step',
  description:
    "A trace is JSON lines, the first a `config`, then `alloc`, `free`, `record_stream`, `empty_cache` and so on (docs/allocator.md). One JSON line comes out for each: address or out-of-memory text, PyTorch's counters, its trace entries, segments and blocks. They are the lines that tests/oracle/oracle.py writes of the real allocator. A line that makes no sense ends the trace with exit status 2; what came before it is written.",
  options: {
    traces: positionals('TRACE.jsonl', 'allocator traces', 1),
    out: text('FILE', 'write there instead of to stdout; one trace only').optional(),
    outDir: text('DIR', 'write a file there for each trace, with its name').optional(),
    layoutEvery: integer('N', 'segments and blocks only after each Nth and the last step', {
      minimum: 1,
    }).default(1),
  },
  examples: [
    {
      command: 'allocator replay trace.jsonl --out states.jsonl',
      description: 'what the allocator does with a trace',
    },
    {
      command: 'allocator replay traces/*.jsonl --out-dir states',
      description: 'several traces, a file each',
    },
  ],
  async run({ traces, out, outDir, layoutEvery }, { cwd, output }) {
    if (out !== undefined && outDir !== undefined) {
      throw new UserError('options', '--out and --out-dir cannot be used together');
    }
    if (traces.length > 1 && outDir === undefined) {
      throw new UserError('options', 'several traces need --out-dir');
    }
    if (outDir !== undefined) {
      const folder = resolve(cwd, outDir);
      await mkdir(folder, { recursive: true }).catch((error) => {
        throw unwritable(error, folder);
      });
    }
    for (const trace of traces) {
      const to = outDir !== undefined ? join(outDir, basename(trace)) : out;
      const file = to === undefined ? null : await create(resolve(cwd, to));
      const lines = createInterface({
        input: createReadStream(resolve(cwd, trace)),
        crlfDelay: Number.POSITIVE_INFINITY,
      });
      try {
        for await (const row of replayTrace(lines, trace, { layoutEvery })) {
          if (row.undefined !== undefined) {
            output.warn(`${trace}, step ${row.i}: PyTorch is undefined here: ${row.undefined}`);
          }
          const line = JSON.stringify(row);
          if (file === null) output.product(line);
          else await writeLine(file, line, to as string);
        }
      } catch (error) {
        throw unreadable(error, trace);
      } finally {
        await file?.close();
      }
    }
  },
});

interface ExplainConfig {
  readonly conf: string;
}

const explain = defineCommand<ExplainConfig>({
  name: 'allocator explain',
  summary: 'Say what each key of a PYTORCH_ALLOC_CONF does',
  description: `The keys of PyTorch 2.14.1, with the values they take:\n${allocatorConfKeys()
    .map(({ key, allowed }) => `  ${key}: ${allowed}`)
    .join('\n')}`,
  options: {
    conf: text('CONF', 'the text of PYTORCH_ALLOC_CONF', {
      env: 'PYTORCH_ALLOC_CONF',
    }),
  },
  examples: [
    {
      command: 'allocator explain --conf "expandable_segments:True,max_split_size_mb:128"',
      description: 'two keys',
    },
  ],
  async run({ conf }, { output }) {
    for (const { key, value, explanation } of explainAllocatorConf(conf)) {
      output.product(`${key}:${value}\n  ${explanation}`);
    }
  },
});

export const allocatorCommands: readonly Command[] = [replay, explain];

async function create(path: string): Promise<FileHandle> {
  try {
    return await open(path, 'w');
  } catch (error) {
    throw unwritable(error, path);
  }
}

async function writeLine(file: FileHandle, line: string, path: string): Promise<void> {
  try {
    await file.appendFile(`${line}\n`);
  } catch (error) {
    throw unwritable(error, path);
  }
}

function unwritable(error: unknown, path: string): UserError {
  return new UserError('write-product', `cannot write ${path}: ${(error as Error).message}`, {
    cause: error,
  });
}

function unreadable(error: unknown, trace: string): unknown {
  const isSystemError = error instanceof Error && 'syscall' in error;
  if (!isSystemError) return error;
  return new UserError('trace_file', `${trace} cannot be read: ${error.message}`, { cause: error });
}
