// What one communicator costs, step by step, on each of its ranks: the figures behind `memtracker nccl`.

import { addBands, type Band, NO_BAND } from '../base/band.ts';
import { parseBytes } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import { COLLECTIVES, type Collective, collectiveOf } from './algorithm.ts';
import type { ChannelCounts } from './channels.ts';
import { Communicator, type NcclSettings } from './communicator.ts';
import {
  CONTEXT_STACK,
  type GpuProperties,
  kernelFamily,
  kernelStack,
  localMemoryTerm,
  moduleTerm,
} from './process_memory.ts';
import { type MemoryTerm, mergeTerms } from './term.ts';

/** One operation of a scenario. */
export type Operation =
  | { readonly text: string; readonly kind: 'init' }
  | {
      readonly text: string;
      readonly kind: Collective;
      readonly bytes: number;
      /** Global rank on the other side of a send or a receive. */
      readonly peer?: number;
    };

/**
 * Parses `init,all_reduce:4096,all_reduce:512MiB,send:4096@1`: a collective and its payload, for send and recv `@` the peer's
 * global rank.
 * @throws UserError `bad-operation` that lists what is known.
 */
export function parseOperations(text: string): Operation[] {
  return text.split(',').map((item) => parseOperation(item.trim()));
}

function parseOperation(text: string): Operation {
  if (text === 'init') return { text, kind: 'init' };
  const match = /^([a-z_]+):([^@]+)(?:@(\d+))?$/i.exec(text);
  const kind = match ? collectiveOf(match[1]) : undefined;
  if (!match || kind === undefined) {
    throw new UserError(
      'bad-operation',
      `"${text}" is not an operation. Write init, or a collective with its payload (all_reduce:4096, send:1MiB@1). ` +
        `Known: init, ${COLLECTIVES.join(', ')}.`,
    );
  }
  let size: number;
  try {
    size = parseBytes(match[2]);
  } catch (cause) {
    throw new UserError('bad-operation', `${text}: ${(cause as Error).message}`, { cause });
  }
  return {
    text,
    kind,
    bytes: size,
    ...(match[3] === undefined ? {} : { peer: Number(match[3]) }),
  };
}

export interface StepReport {
  readonly operation: string;
  /** Between the least and the most that this step may add, given what the steps before may have added already. */
  readonly added: Band;
  /** Of the communicator, after the step. */
  readonly total: Band;
  readonly terms: readonly MemoryTerm[];
  /** What the step costs the process once, beside the communicator: code, kernel stacks. */
  readonly processTerms: readonly MemoryTerm[];
  /** Why an algorithm was taken. */
  readonly reason: string | undefined;
}

export interface RankReport {
  readonly rank: number;
  readonly channels: ChannelCounts;
  readonly steps: readonly StepReport[];
}

/**
 * Runs the operations on a fresh communicator of `members`, as each of `ranks` sees it. Operations before `init` imply it.
 * @param gpu absent: process-level terms are left out.
 * @throws UserError `not-a-member` for a rank or a peer outside the communicator.
 */
export function stepReports(
  settings: NcclSettings,
  members: readonly number[],
  ranks: readonly number[],
  operations: readonly Operation[],
  gpu?: GpuProperties,
): RankReport[] {
  return ranks.map((rank) => {
    ensureMember(rank, members);
    const communicator = new Communicator(settings, members, rank);
    const { version } = settings.release;
    const steps: StepReport[] = [];
    let total = NO_BAND;
    let stack = CONTEXT_STACK;
    let started = false;
    const start = () => {
      started = true;
      const { bytes, terms } = communicator.initialise();
      total = addBands(total, bytes);
      const processTerms = gpu ? [moduleTerm(gpu, version)] : [];
      steps.push({
        operation: 'init',
        added: bytes,
        total,
        terms,
        processTerms,
        reason: undefined,
      });
    };
    for (const operation of operations) {
      if (!started) start();
      if (operation.kind === 'init') continue;
      if (operation.peer !== undefined) ensureMember(operation.peer, members);
      const { kind: collective, bytes: size, peer } = operation;
      const { bytes, terms, choice } = communicator.run({ collective, bytes: size, peer });
      total = addBands(total, bytes);
      const family = kernelFamily(collective, choice?.likely === 'tree');
      const processTerms: MemoryTerm[] = [];
      if (gpu && members.length > 1) {
        const term = localMemoryTerm(family, gpu, version, stack);
        if (term.bytes.high > 0) processTerms.push(term);
        stack = Math.max(stack, kernelStack(family, gpu) ?? stack);
      }
      steps.push({
        operation: operation.text,
        added: inOrder(bytes),
        total,
        terms: mergeTerms(terms).map((term) => ({ ...term, bytes: inOrder(term.bytes) })),
        processTerms,
        reason: choice?.reason,
      });
    }
    if (!started) start();
    return { rank, channels: communicator.channels.likely, steps };
  });
}

/**
 * In the scenario that had more before, a step adds less: the figures of one step can be the other way round than those of the
 * totals.
 */
function inOrder({ low, likely, high }: Band): Band {
  return { low: Math.min(low, likely, high), likely, high: Math.max(low, likely, high) };
}

function ensureMember(rank: number, members: readonly number[]): void {
  if (members.includes(rank)) return;
  throw new UserError(
    'not-a-member',
    `rank ${rank} is not in the communicator, whose ranks are ${members.join(', ')}`,
  );
}
