// Reads a trace file into memory: everything up to the last whole batch, with what is missing said in `integrity`.

import { inflateRawSync } from 'node:zlib';
import { unpack } from 'msgpackr';
import { UserError } from '../base/errors.ts';
import { err, type Result } from '../base/result.ts';
import { type Batch, decodeBatch } from '../protocol/codec.ts';
import { TraceBuilder } from './builder.ts';
import {
  MAX_RECORD_BYTES,
  RecordKind,
  type TraceFooter,
  type TraceHeader,
  traceFooterSchema,
  traceHeaderSchema,
} from './file_format.ts';
import { readRecords } from './record_stream.ts';
import type { Trace } from './trace.ts';

/**
 * @throws UserError when the file cannot be opened, is not a trace, is newer than this program, or has no header. Any
 *   damage after the header is not thrown: what came before is returned and `integrity` says what is missing.
 */
export async function readTrace(path: string): Promise<Trace> {
  const records = readRecords(path);
  const first = await records.next();
  if (first.done || first.value.kind !== RecordKind.header) {
    throw new UserError('TRACE_HEADER', `${path} has no readable header; trace the job again`);
  }
  const header = parseHeader(path, first.value.payload);
  const builder = new TraceBuilder(header);
  let footer: TraceFooter | null = null;
  let expected = 0;
  for (;;) {
    const next = await records.next();
    if (next.done) {
      if (next.value !== undefined) builder.fault(next.value);
      break;
    }
    if (next.value.kind === RecordKind.footer) {
      const parsed = traceFooterSchema.safeParse(unpacked(next.value.payload));
      if (parsed.success) footer = parsed.data;
      else builder.fault('the footer does not read');
      continue;
    }
    if (next.value.kind !== RecordKind.batch) continue;
    const batch = readBatch(next.value.payload);
    if (!batch.ok) {
      builder.fault(batch.error);
      continue;
    }
    const { sequence } = batch.value;
    if (sequence < expected) {
      builder.fault(`batch ${sequence} came twice or out of order and was left out`);
      continue;
    }
    if (sequence > expected) {
      builder.fault(
        sequence - expected === 1
          ? `batch ${expected} is missing`
          : `batches ${expected} to ${sequence - 1} are missing`,
      );
    }
    expected = sequence + 1;
    for (const event of batch.value.events) builder.push(event);
  }
  if (footer === null)
    builder.fault('the trace was not closed: its recorder was killed or is still running');
  return builder.finish(footer);
}

/** Only the header, without reading the events. @throws UserError as {@link readTrace}. */
export async function readTraceHeader(path: string): Promise<TraceHeader> {
  const records = readRecords(path);
  const first = await records.next();
  await records.return(undefined);
  if (first.done || first.value.kind !== RecordKind.header) {
    throw new UserError('TRACE_HEADER', `${path} has no readable header; trace the job again`);
  }
  return parseHeader(path, first.value.payload);
}

function parseHeader(path: string, payload: Buffer): TraceHeader {
  const parsed = traceHeaderSchema.safeParse(unpacked(payload));
  if (!parsed.success) {
    const [issue] = parsed.error.issues;
    throw new UserError(
      'TRACE_HEADER',
      `${path} has a header that does not read (${issue.path.join('.') || 'header'}: ${issue.message}); trace the job again`,
    );
  }
  return parsed.data;
}

function readBatch(payload: Buffer): Result<Batch> {
  try {
    return decodeBatch(inflateRawSync(payload, { maxOutputLength: MAX_RECORD_BYTES }));
  } catch (error) {
    return err(`a batch does not inflate: ${(error as Error).message}`);
  }
}

/** Undefined for what is no msgpack: the schemas refuse it. */
function unpacked(payload: Buffer): unknown {
  try {
    return unpack(payload);
  } catch {
    return undefined;
  }
}
