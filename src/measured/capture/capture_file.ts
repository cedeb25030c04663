// The file of a captured run: a line, the length of a JSON header, the header, then the pickle of torch's snapshot.

import { z } from 'zod';
import { formatBytes, MiB } from '../../base/bytes.ts';
import { UserError } from '../../base/errors.ts';
import type { MeasuredInput } from '../input.ts';
import { type CaptureHeader, captureHeaderSchema } from './capture_schema.ts';

const MAGIC = 'MTCAPTURE ';
const VERSION = 1;
/** A mark takes about half a KiB: room for half a million of them. */
const MAX_HEADER_BYTES = 256 * MiB;
const MAX_PREAMBLE_BYTES = 64;

export function looksLikeCapture(head: Buffer): boolean {
  return head.subarray(0, MAGIC.length).toString('latin1') === MAGIC;
}

export interface CaptureFile {
  readonly header: CaptureHeader;
  /** What follows the header, as an input of its own. */
  readonly snapshot: MeasuredInput;
}

/**
 * Reads the header.
 * @throws UserError `CAPTURE_VERSION`, `CAPTURE_FORMAT` (names the wrong field), `CAPTURE_TRUNCATED`.
 */
export async function openCapture(input: MeasuredInput): Promise<CaptureFile> {
  const { path } = input;
  const chunks = input.chunks();
  let start: Buffer = Buffer.alloc(0);
  try {
    for await (const chunk of chunks) {
      start = Buffer.concat([start, chunk]);
      const end = headerEnd(path, start);
      if (end !== undefined && start.length >= end) break;
    }
  } finally {
    await chunks.return();
  }
  const end = headerEnd(path, start);
  if (end === undefined || start.length < end) {
    throw new UserError('CAPTURE_TRUNCATED', `${path} is cut off inside its header; copy it again`);
  }
  const header = parseHeader(path, start.subarray(headerStart(start), end));
  return {
    header,
    snapshot: { ...input, head: start.subarray(end, end + 512), chunks: () => skip(input, end) },
  };
}

/** Where the header ends; undefined when the preamble is not whole yet. */
function headerEnd(path: string, start: Buffer): number | undefined {
  const begins = headerStart(start);
  if (begins < 0) {
    if (start.length > MAX_PREAMBLE_BYTES) {
      throw new UserError('CAPTURE_FORMAT', `${path} is a captured run with a damaged preamble`);
    }
    return undefined;
  }
  const [first, second] = start.toString('latin1', 0, begins).split('\n');
  const version = Number(first.slice(MAGIC.length));
  if (version > VERSION) {
    throw new UserError(
      'CAPTURE_VERSION',
      `${path} has capture format ${version}; this memtracker reads up to ${VERSION}: update it`,
    );
  }
  const length = Number(second);
  if (!Number.isSafeInteger(length) || length < 2 || length > MAX_HEADER_BYTES) {
    throw new UserError(
      'CAPTURE_FORMAT',
      `${path} is a captured run with a damaged preamble (a header of ${second.slice(0, 20)} bytes; at most ${formatBytes(MAX_HEADER_BYTES)})`,
    );
  }
  return begins + length;
}

/** Behind the second line; -1 when it has not come. */
function headerStart(start: Buffer): number {
  const first = start.indexOf('\n');
  const second = first < 0 ? -1 : start.indexOf('\n', first + 1);
  return second < 0 ? -1 : second + 1;
}

function parseHeader(path: string, text: Buffer): CaptureHeader {
  let raw: unknown;
  try {
    raw = JSON.parse(text.toString('utf8'));
  } catch (error) {
    throw new UserError(
      'CAPTURE_FORMAT',
      `${path}: its header is no JSON: ${(error as Error).message}`,
    );
  }
  const parsed = captureHeaderSchema.safeParse(raw);
  if (!parsed.success) {
    const detail = z.prettifyError(parsed.error).split('\n').slice(0, 4).join(' ');
    throw new UserError('CAPTURE_FORMAT', `${path}: its header does not read: ${detail}`);
  }
  return parsed.data;
}

async function* skip(input: MeasuredInput, bytes: number): AsyncGenerator<Buffer, void, void> {
  let left = bytes;
  for await (const chunk of input.chunks()) {
    if (left >= chunk.length) {
      left -= chunk.length;
      continue;
    }
    yield left === 0 ? chunk : chunk.subarray(left);
    left = 0;
  }
}
