// Reads a CUDA memory snapshot file: bytes -> pickle machine -> builder.

import { UserError } from '../../base/errors.ts';
import type { MeasuredInput } from '../input.ts';
import { type PickleLimits, PickleMachine } from '../pickle/machine.ts';
import { Op } from '../pickle/opcodes.ts';
import type { MemorySnapshot } from './snapshot.ts';
import { SnapshotBuilder } from './snapshot_builder.ts';

/** True when the content starts as a pickle does (protocol 2 to 5). */
export function looksLikePickle(head: Uint8Array): boolean {
  return head[0] === Op.PROTO && head[1] >= 2 && head[1] <= 5;
}

/**
 * The snapshot of a `torch.cuda.memory._dump_snapshot` file, plain or gzip. Nothing in the file is executed.
 * @throws UserError of the pickle machine (see there), of the gzip reader, or `SNAPSHOT_*` when it is some other pickle.
 */
export async function readSnapshot(
  input: MeasuredInput,
  limits: Partial<PickleLimits> = {},
): Promise<MemorySnapshot> {
  const builder = new SnapshotBuilder();
  const machine = new PickleMachine(builder, limits);
  try {
    for await (const chunk of input.chunks()) {
      machine.feed(chunk);
      if (machine.done) break;
    }
    return builder.snapshot(machine.finish());
  } catch (error) {
    if (error instanceof UserError) {
      throw new UserError(error.code, `${input.path}: ${error.message}`, { cause: error });
    }
    if (error instanceof RangeError) {
      throw new UserError('PICKLE_LIMIT', `${input.path}: the pickle is ${error.message}`);
    }
    throw error;
  }
}
