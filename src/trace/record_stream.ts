// Reads the records of a trace file one after the other with bounded memory.

import { type FileHandle, open } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import { UserError } from '../base/errors.ts';
import {
  FILE_VERSION,
  MAGIC,
  MAX_RECORD_BYTES,
  PREAMBLE_BYTES,
  RECORD_HEAD_BYTES,
} from './file_format.ts';

export interface TraceRecord {
  readonly kind: number;
  readonly payload: Buffer;
}

/**
 * Yields whole, undamaged records. Ends at the first damaged or cut one and returns a sentence about it, or undefined
 * when the file ends on a record boundary.
 * @throws UserError when the file cannot be opened, is not a trace, or was written by a newer version.
 */
export async function* readRecords(
  path: string,
): AsyncGenerator<TraceRecord, string | undefined, void> {
  let file: FileHandle;
  try {
    file = await open(path, 'r');
  } catch (error) {
    throw new UserError('TRACE_OPEN', `cannot open ${path}: ${(error as Error).message}`);
  }
  try {
    const preamble = Buffer.alloc(PREAMBLE_BYTES);
    const { bytesRead } = await file.read(preamble, 0, PREAMBLE_BYTES, 0);
    if (bytesRead < PREAMBLE_BYTES || !preamble.subarray(0, MAGIC.length).equals(MAGIC)) {
      throw new UserError(
        'TRACE_FORMAT',
        `${path} is not a memtracker trace; \`memtracker trace\` writes one`,
      );
    }
    const version = preamble[MAGIC.length];
    if (version > FILE_VERSION) {
      throw new UserError(
        'TRACE_VERSION',
        `${path} has trace format ${version}; this memtracker reads up to ${FILE_VERSION}: update it`,
      );
    }
    let offset = PREAMBLE_BYTES;
    const head = Buffer.alloc(RECORD_HEAD_BYTES);
    for (;;) {
      const start = await file.read(head, 0, RECORD_HEAD_BYTES, offset);
      if (start.bytesRead === 0) return undefined;
      if (start.bytesRead < RECORD_HEAD_BYTES) return `the file is cut off at byte ${offset}`;
      const length = head.readUInt32LE(1);
      if (length > MAX_RECORD_BYTES) return `the record at byte ${offset} is damaged (length)`;
      const payload = Buffer.allocUnsafe(length);
      const body = await file.read(payload, 0, length, offset + RECORD_HEAD_BYTES);
      if (body.bytesRead < length) return `the file is cut off in the record at byte ${offset}`;
      if (crc32(payload) !== head.readUInt32LE(5)) {
        return `the record at byte ${offset} is damaged (checksum)`;
      }
      yield { kind: head[0], payload };
      offset += RECORD_HEAD_BYTES + length;
    }
  } finally {
    await file.close();
  }
}
