// Opens a measured file: plain or gzip, recognised by its content and not by its name, read in chunks.

import { createReadStream } from 'node:fs';
import { type FileHandle, open, stat } from 'node:fs/promises';
import { createGunzip } from 'node:zlib';
import { formatBytes, GiB, MiB } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';

const CHUNK_BYTES = MiB;
const HEAD_BYTES = 512;

/** Limits on what a compressed file may become. A snapshot shrinks by 15 to 60 times; deflate cannot do more than 1,032. */
export interface DecompressionLimits {
  readonly bytes: number;
  /** Looked at once `ratioFrom` bytes have come out. */
  readonly ratio: number;
  readonly ratioFrom: number;
}

export const DEFAULT_DECOMPRESSION_LIMITS: DecompressionLimits = {
  bytes: 64 * GiB,
  ratio: 250,
  ratioFrom: 128 * MiB,
};

export type Compression = 'none' | 'gzip';

export interface MeasuredInput {
  readonly path: string;
  readonly fileBytes: number;
  readonly compression: Compression;
  /** The first bytes, after decompression; at most 512. */
  readonly head: Buffer;
  /** The whole content, decompressed, in chunks of at most 1 MiB. */
  chunks(): AsyncGenerator<Buffer, void, void>;
}

/** @throws UserError `MEASURED_OPEN` when the file cannot be read, `MEASURED_GZIP` when its gzip is damaged or a bomb. */
export async function openMeasuredInput(
  path: string,
  limits: DecompressionLimits = DEFAULT_DECOMPRESSION_LIMITS,
): Promise<MeasuredInput> {
  const start = await readHead(path);
  const compression: Compression =
    start.head[0] === 0x1f && start.head[1] === 0x8b ? 'gzip' : 'none';
  const chunks =
    compression === 'gzip' ? () => gunzipped(path, start.fileBytes, limits) : () => plain(path);
  let { head } = start;
  if (compression === 'gzip') {
    head = Buffer.alloc(0);
    for await (const chunk of chunks()) {
      head = Buffer.from(chunk.subarray(0, HEAD_BYTES));
      break;
    }
  }
  return { path, fileBytes: start.fileBytes, compression, head, chunks };
}

async function readHead(path: string): Promise<{ head: Buffer; fileBytes: number }> {
  let file: FileHandle | undefined;
  try {
    const facts = await stat(path);
    if (!facts.isFile()) throw new Error('it is not a file');
    file = await open(path, 'r');
    const head = Buffer.alloc(HEAD_BYTES);
    const { bytesRead } = await file.read(head, 0, HEAD_BYTES, 0);
    return { head: head.subarray(0, bytesRead), fileBytes: facts.size };
  } catch (error) {
    throw new UserError('MEASURED_OPEN', `cannot read ${path}: ${(error as Error).message}`, {
      cause: error,
    });
  } finally {
    await file?.close();
  }
}

async function* plain(path: string): AsyncGenerator<Buffer, void, void> {
  const file = await open(path, 'r');
  try {
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    for (;;) {
      const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES);
      if (bytesRead === 0) return;
      yield chunk.subarray(0, bytesRead);
    }
  } finally {
    await file.close();
  }
}

async function* gunzipped(
  path: string,
  fileBytes: number,
  limits: DecompressionLimits,
): AsyncGenerator<Buffer, void, void> {
  const file = createReadStream(path, { highWaterMark: 256 * 1024 });
  const gunzip = createGunzip({ chunkSize: CHUNK_BYTES });
  file.on('error', (error) => gunzip.destroy(error));
  file.pipe(gunzip);
  let produced = 0;
  try {
    for await (const chunk of gunzip as AsyncIterable<Buffer>) {
      produced += chunk.length;
      const ratio = produced / Math.max(1, file.bytesRead);
      if (produced > limits.bytes || (produced > limits.ratioFrom && ratio > limits.ratio)) {
        throw new UserError(
          'MEASURED_GZIP',
          `${path} (${formatBytes(fileBytes)}) unpacks to more than ${formatBytes(produced)}, ${Math.round(ratio)} times what was read; ` +
            'no memory snapshot compresses that well. Unpack it yourself if you trust it.',
        );
      }
      yield chunk;
    }
  } catch (error) {
    if (error instanceof UserError) throw error;
    throw new UserError('MEASURED_GZIP', `${path} is a damaged gzip: ${(error as Error).message}`, {
      cause: error,
    });
  } finally {
    file.destroy();
    gunzip.destroy();
  }
}
