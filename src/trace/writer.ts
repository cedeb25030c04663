// Writes a trace file record by record, so that whatever arrived before a crash can be read.

import { type FileHandle, open } from 'node:fs/promises';
import { crc32, deflateRawSync } from 'node:zlib';
import { pack } from 'msgpackr';
import { UserError } from '../base/errors.ts';
import {
  FILE_VERSION,
  MAGIC,
  PREAMBLE_BYTES,
  RECORD_HEAD_BYTES,
  RecordKind,
  type TraceFooter,
  type TraceHeader,
  traceFooterSchema,
  traceHeaderSchema,
} from './file_format.ts';

export class TraceWriter {
  readonly path: string;
  bytesWritten = 0;
  #file: FileHandle;
  #closed = false;

  private constructor(path: string, file: FileHandle) {
    this.path = path;
    this.#file = file;
  }

  /** Creates (or replaces) the file and writes its header. @throws UserError when the file cannot be written. */
  static async create(path: string, header: TraceHeader): Promise<TraceWriter> {
    let file: FileHandle;
    try {
      file = await open(path, 'w', 0o644);
    } catch (error) {
      throw cannotWrite(path, error);
    }
    const writer = new TraceWriter(path, file);
    const preamble = Buffer.alloc(PREAMBLE_BYTES);
    MAGIC.copy(preamble);
    preamble[MAGIC.length] = FILE_VERSION;
    await writer.#write(preamble);
    await writer.#record(RecordKind.header, pack(traceHeaderSchema.parse(header)));
    return writer;
  }

  /** Appends one wire frame as it came in. @throws UserError when the disk is full or gone. */
  async batch(frame: Uint8Array): Promise<void> {
    await this.#record(RecordKind.batch, deflateRawSync(frame, { level: 1 }));
  }

  /** Writes the footer and closes the file. */
  async close(footer: TraceFooter): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    try {
      await this.#record(RecordKind.footer, pack(traceFooterSchema.parse(footer)));
      await this.#file.sync();
    } finally {
      await this.#file.close();
    }
  }

  /** Closes the file without a footer: what arrived stays readable and is marked as not closed. */
  async abandon(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#file.close();
  }

  async #record(kind: number, payload: Uint8Array): Promise<void> {
    const head = Buffer.alloc(RECORD_HEAD_BYTES);
    head[0] = kind;
    head.writeUInt32LE(payload.length, 1);
    head.writeUInt32LE(crc32(payload), 5);
    await this.#write(Buffer.concat([head, payload]));
  }

  async #write(data: Buffer): Promise<void> {
    try {
      let offset = 0;
      while (offset < data.length) {
        const { bytesWritten } = await this.#file.write(data, offset);
        offset += bytesWritten;
      }
    } catch (error) {
      throw cannotWrite(this.path, error);
    }
    this.bytesWritten += data.length;
  }
}

function cannotWrite(path: string, error: unknown): UserError {
  const { code, message } = error as NodeJS.ErrnoException;
  const hint =
    code === 'ENOSPC'
      ? 'the disk is full; free some space or choose another place with --out'
      : 'choose another place with --out';
  return new UserError('TRACE_WRITE', `cannot write the trace ${path} (${message}): ${hint}`, {
    cause: error,
  });
}
