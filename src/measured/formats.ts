// The formats of measured runs. Each is one importer, found by content; a file's name says nothing.

import { UserError } from '../base/errors.ts';
import { MAGIC } from '../trace/file_format.ts';
import { looksLikeCapture, openCapture } from './capture/capture_file.ts';
import { readCaptureRun } from './capture/capture_run.ts';
import { type MeasuredInput, openMeasuredInput } from './input.ts';
import type { MeasuredRun } from './measured_run.ts';
import { looksLikePickle } from './snapshot/snapshot_reader.ts';
import { readSnapshotRun, type SnapshotRunOptions } from './snapshot_run.ts';

export interface MeasuredFormat {
  readonly name: string;
  /** Whether the first bytes are of this format. */
  detect(head: Buffer): boolean;
  /** @throws UserError when it is this format and broken. */
  read(input: MeasuredInput, options: SnapshotRunOptions): Promise<MeasuredRun>;
}

export const MEASURED_FORMATS: readonly MeasuredFormat[] = [
  { name: 'capture', detect: looksLikeCapture, read: readCaptureRun },
  { name: 'snapshot', detect: looksLikePickle, read: readSnapshotRun },
];

/** True when the file is a trace of ours and not a measured run. @throws UserError `MEASURED_OPEN`. */
export async function isTraceFile(path: string): Promise<boolean> {
  return isTrace((await openMeasuredInput(path)).head);
}

function isTrace(head: Buffer): boolean {
  return head.subarray(0, MAGIC.length).equals(MAGIC);
}

/**
 * Reads a measured run of any format.
 * @throws UserError `MEASURED_FORMAT`, saying what the file looks like instead, or as its format's reader.
 */
export async function readMeasuredRun(
  path: string,
  options: SnapshotRunOptions = {},
): Promise<MeasuredRun> {
  const input = await openMeasuredInput(path);
  const format = MEASURED_FORMATS.find(({ detect }) => detect(input.head));
  if (format === undefined) throw unknownFormat(input);
  return format.read(input, options);
}

/** The snapshot inside a measured run's file, decompressed. @throws UserError as {@link readMeasuredRun} for what is no file. */
export async function* recordedSnapshot(path: string): AsyncGenerator<Uint8Array, void, void> {
  const input = await openMeasuredInput(path);
  const { chunks } = looksLikeCapture(input.head) ? (await openCapture(input)).snapshot : input;
  // A reader's chunk is overwritten by its next.
  for await (const chunk of chunks()) yield Uint8Array.from(chunk);
}

/** First bytes of what people give by mistake. */
const LOOKALIKES: readonly (readonly [string, string])[] = [
  [
    'SQLite format 3\0',
    'an SQLite database; dump the snapshot as a pickle (_dump_snapshot) instead',
  ],
  [
    'PK\x03\x04',
    'a zip archive, as torch.save writes one; a snapshot comes from torch.cuda.memory._dump_snapshot',
  ],
  ['<!', 'an HTML page; give the snapshot it was made from'],
  ['<html', 'an HTML page; give the snapshot it was made from'],
  ['{', 'JSON; give the snapshot or trace it was made from'],
  ['[', 'JSON; give the snapshot or trace it was made from'],
  ['version https://git-lfs', 'a Git LFS pointer; run `git lfs pull` first'],
];

function unknownFormat(input: MeasuredInput): UserError {
  const { head, path } = input;
  const text = head.toString('latin1');
  const known = LOOKALIKES.find(([start]) => text.startsWith(start));
  const looks =
    head.length === 0
      ? 'it is empty'
      : known !== undefined
        ? `it looks like ${known[1]}`
        : head.every((byte) => byte === 0)
          ? 'it begins with zeros'
          : `it begins with the bytes ${head.subarray(0, 8).toString('hex')}`;
  return new UserError(
    'MEASURED_FORMAT',
    `${path} is neither a memtracker trace, a captured run nor a CUDA memory snapshot: ${looks}`,
  );
}
