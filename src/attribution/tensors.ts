// One row for each live block: everything that is known of the tensor behind it.

import type { Owner, Pass } from '../protocol/events.ts';
import { OWNERS, PASSES } from '../protocol/events.ts';
import type { Timeline } from '../timeline/timeline.ts';
import type { PhaseMeta } from '../trace/trace.ts';
import type { Attribution } from './attribution.ts';
import { type Lifetimes, NEVER } from './lifetimes.ts';
import { ModuleNames } from './module_name.ts';

export interface TensorRow {
  readonly storage: number;
  /** The event that made the block. */
  readonly event: number;
  /** Bytes asked for, and of the allocator's block. */
  readonly bytes: number;
  readonly blockBytes: number;
  /** Of the tensor that made the storage; '' and null where the trace does not say. */
  readonly dtype: string;
  readonly layout: string;
  readonly shape: readonly number[] | null;
  readonly owner: Owner;
  readonly ownerName: string;
  readonly op: string;
  readonly module: string;
  readonly pass: Pass;
  readonly stack: number;
  readonly stream: number;
  /** Undefined outside every phase. */
  readonly born: PhaseMeta | undefined;
  /** Undefined when it is live at the end, or died outside every phase. */
  readonly died: PhaseMeta | undefined;
  readonly diedAtEvent: number | null;
}

/** Rows of an attribution's blocks, largest first; at most `limit`. */
export function tensorRows(
  timeline: Timeline,
  attribution: Attribution,
  { diedAt }: Lifetimes,
  limit = Number.POSITIVE_INFINITY,
): TensorRow[] {
  const { trace } = timeline;
  const { events } = trace;
  const names = new ModuleNames(trace);
  return [...attribution.blocks]
    .sort((a, b) => b.block - a.block || a.storage - b.storage)
    .slice(0, limit)
    .map((block) => {
      const { madeBy } = block;
      const meta = trace.tensors[events.tensor[block.bornAt]];
      const death = diedAt[madeBy];
      return {
        storage: block.storage,
        event: madeBy,
        bytes: block.requested,
        blockBytes: block.block,
        dtype: meta?.dtype ?? '',
        layout: meta?.layout ?? '',
        shape: meta?.shape ?? null,
        owner: OWNERS[block.owner] ?? 'other',
        ownerName: trace.strings[block.ownerName] ?? '',
        op: trace.strings[events.op[madeBy]] ?? '',
        module: names.of(events.module[madeBy]),
        pass: PASSES[events.pass[madeBy]] ?? 'none',
        stack: events.stack[madeBy],
        stream: events.stream[madeBy],
        born: trace.phases[events.phase[madeBy]],
        died: death === NEVER ? undefined : trace.phases[events.phase[death]],
        diedAtEvent: death === NEVER ? null : death,
      };
    });
}
