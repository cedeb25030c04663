// From torch.distributed to NCCL: which communicators the process groups of one rank really create, when, and what each call
// on them takes. Rules of c10d's ProcessGroupNCCL (torch 2.14.1, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp):
//
// - A group creates its communicator at its first call; at once when it was given a device_id (eager).
// - A send or receive outside a batch runs on a communicator of its own, of the two ranks involved; in a batch
//   (batch_isend_irecv), and in an eager group, on the group's.
// - A group of one rank creates a communicator too.
// - Groups without NCCL behind CUDA tensors (gloo, …) create none.

import { addBands, type Band, NO_BAND } from '../base/band.ts';
import type { Collective } from './algorithm.ts';
import {
  type CollectiveCall,
  Communicator,
  type CommunicatorConfig,
  type CommunicatorStep,
  type NcclSettings,
} from './communicator.ts';
import { type KernelFamily, kernelFamily } from './process_memory.ts';
import type { MemoryTerm } from './term.ts';

export interface ProcessGroup {
  readonly id: number;
  /** Shown to people. */
  readonly name: string;
  /** `nccl`, or c10d's `cpu:gloo,cuda:nccl`. */
  readonly backend: string;
  /** Global ranks, in group order. */
  readonly ranks: readonly number[];
  /** init_process_group(device_id=…): the communicator is created at once. */
  readonly eager: boolean;
  /** The group whose communicator is split to make this one; only with shared resources does it change memory. */
  readonly parent?: number | undefined;
  readonly config?: CommunicatorConfig | undefined;
}

export interface GroupCall extends CollectiveCall {
  readonly group: number;
  /** Inside batch_isend_irecv. */
  readonly batched?: boolean | undefined;
}

/** What one event did: terms that a step of one communicator took, and whose communicator it was. */
export interface GroupStep {
  readonly communicator: string;
  readonly what: 'init' | Collective;
  readonly terms: readonly MemoryTerm[];
  readonly bytes: Band;
}

/** An event, with everything that it took; `undo` puts the state back as it was before the event. */
export interface GroupEvent {
  readonly steps: readonly GroupStep[];
  readonly bytes: Band;
  /** Set when a kernel is launched. */
  readonly kernel?: KernelFamily;
  undo(): void;
}

/** One communicator alive, for a breakdown. */
export interface LiveCommunicator {
  readonly name: string;
  readonly size: number;
  readonly terms: readonly MemoryTerm[];
}

interface GroupState {
  readonly group: ProcessGroup;
  readonly usesNccl: boolean;
  communicator: Communicator | undefined;
  /** Two-rank communicators of unbatched sends and receives, by peer. */
  readonly pairs: Map<number, Communicator>;
}

export class ProcessGroups {
  readonly #settings: NcclSettings;
  readonly #rank: number;
  readonly #groups = new Map<number, GroupState>();
  /** Communicators created and alive, for the running total. */
  readonly #live = new Map<Communicator, string>();
  #bytes: Band = NO_BAND;
  #started = false;

  /** @param rank the global rank whose memory is modelled. */
  constructor(settings: NcclSettings, rank: number) {
    this.#settings = settings;
    this.#rank = rank;
  }

  /** Bytes of all live communicators. */
  get bytes(): Band {
    return this.#bytes;
  }

  /** True once a communicator was created in this process: the code of NCCL's kernels is loaded from then on. */
  get started(): boolean {
    return this.#started;
  }

  communicators(): LiveCommunicator[] {
    return [...this.#live].map(([communicator, name]) => ({
      name,
      size: communicator.size,
      terms: communicator.terms(),
    }));
  }

  /** A rank outside the group gets nothing. @throws RangeError when the id is in use. */
  create(group: ProcessGroup): GroupEvent {
    if (this.#groups.has(group.id))
      throw new RangeError(`process group ${group.id} exists already`);
    const usesNccl = usesNcclFor(group.backend) && group.ranks.includes(this.#rank);
    const state: GroupState = { group, usesNccl, communicator: undefined, pairs: new Map() };
    this.#groups.set(group.id, state);
    const event = this.#event();
    event.onUndo(() => this.#groups.delete(group.id));
    if (usesNccl && group.eager) this.#ensureGroupCommunicator(state, event);
    return event.finish();
  }

  /** @throws RangeError for an unknown group. */
  call(call: GroupCall): GroupEvent {
    const state = this.#groups.get(call.group);
    if (state === undefined) throw new RangeError(`process group ${call.group} does not exist`);
    const event = this.#event();
    if (!state.usesNccl) return event.finish();
    const communicator = this.#communicatorFor(state, call, event);
    const step = communicator.run(call);
    const usesTree = step.choice?.likely === 'tree';
    event.take(communicator, call.collective, step);
    return event.finish(
      communicator.size > 1 ? kernelFamily(call.collective, usesTree) : undefined,
    );
  }

  /** Everything that the group's communicators hold is free again. Unknown ids are ignored. Returns what was freed. */
  destroy(id: number): Band {
    const state = this.#groups.get(id);
    if (state === undefined) return NO_BAND;
    this.#groups.delete(id);
    let freed = NO_BAND;
    for (const communicator of [state.communicator, ...state.pairs.values()]) {
      if (communicator === undefined) continue;
      freed = addBands(freed, communicator.bytes());
      this.#live.delete(communicator);
    }
    // Summed anew: a split that shares resources leaves what it added in its parent.
    this.#bytes = [...this.#live.keys()].reduce(
      (sum, item) => addBands(sum, item.bytes()),
      NO_BAND,
    );
    return freed;
  }

  #communicatorFor(state: GroupState, call: GroupCall, event: EventBuilder): Communicator {
    const { group } = state;
    const pointToPoint = call.collective === 'send' || call.collective === 'recv';
    const alone = pointToPoint && !call.batched && !group.eager && call.peer !== undefined;
    if (!alone || call.peer === undefined || group.ranks.length === 1) {
      return this.#ensureGroupCommunicator(state, event);
    }
    const { peer } = call;
    const known = state.pairs.get(peer);
    if (known) return known;
    const pair = peer === this.#rank ? [peer] : [this.#rank, peer].sort((a, b) => a - b);
    const name = `${group.name} [${pair.join(', ')}]`;
    const communicator = new Communicator(this.#settings, pair, this.#rank, group.config);
    state.pairs.set(peer, communicator);
    event.onUndo(() => state.pairs.delete(peer));
    this.#initialise(communicator, name, event);
    return communicator;
  }

  #ensureGroupCommunicator(state: GroupState, event: EventBuilder): Communicator {
    if (state.communicator) return state.communicator;
    const { group } = state;
    const parent =
      group.parent === undefined ? undefined : this.#groups.get(group.parent)?.communicator;
    const communicator = new Communicator(
      this.#settings,
      group.ranks,
      this.#rank,
      group.config,
      parent,
    );
    state.communicator = communicator;
    event.onUndo(() => {
      state.communicator = undefined;
    });
    this.#initialise(communicator, group.name, event);
    return communicator;
  }

  #initialise(communicator: Communicator, name: string, event: EventBuilder): void {
    this.#live.set(communicator, name);
    const started = this.#started;
    this.#started = true;
    event.onUndo(() => {
      this.#live.delete(communicator);
      this.#started = started;
    });
    event.take(communicator, 'init', communicator.initialise());
  }

  #event(): EventBuilder {
    return new EventBuilder(this.#live, this.#bytes, (bytes) => {
      this.#bytes = bytes;
    });
  }
}

/** Collects the steps of one event and how to take them back. */
class EventBuilder {
  readonly #names: ReadonlyMap<Communicator, string>;
  readonly #before: Band;
  readonly #setTotal: (bytes: Band) => void;
  readonly #steps: GroupStep[] = [];
  readonly #undo: (() => void)[] = [];
  #bytes: Band = NO_BAND;

  constructor(
    names: ReadonlyMap<Communicator, string>,
    before: Band,
    setTotal: (bytes: Band) => void,
  ) {
    this.#names = names;
    this.#before = before;
    this.#setTotal = setTotal;
  }

  onUndo(action: () => void): void {
    this.#undo.push(action);
  }

  take(communicator: Communicator, what: GroupStep['what'], step: CommunicatorStep): void {
    this.#undo.push(step.undo);
    this.#bytes = addBands(this.#bytes, step.bytes);
    this.#setTotal(addBands(this.#before, this.#bytes));
    if (step.terms.length === 0) return;
    const name = this.#names.get(communicator) ?? '';
    this.#steps.push({ communicator: name, what, terms: step.terms, bytes: step.bytes });
  }

  finish(kernel?: KernelFamily): GroupEvent {
    return {
      steps: this.#steps,
      bytes: this.#bytes,
      ...(kernel === undefined ? {} : { kernel }),
      undo: () => {
        for (const action of this.#undo.reverse()) action();
        this.#setTotal(this.#before);
      },
    };
  }
}

/** Whether a backend description (`nccl`, `cuda:nccl,cpu:gloo`) puts CUDA tensors on NCCL. */
function usesNcclFor(backend: string): boolean {
  const parts = backend.toLowerCase().split(',');
  for (const part of parts) {
    const [device, name] = part.includes(':') ? part.split(':') : ['cuda', part];
    if (device.trim() === 'cuda') return name.trim() === 'nccl';
  }
  return false;
}
