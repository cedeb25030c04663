// What stood on a device at one instant, and who put it there: by owner, module, operator, Python stack and phase of origin.
// Everything is in bytes of allocator blocks; a block counts once, however many tensors alias it.

import { OWNERS, type Owner, PASSES, type Pass } from '../protocol/events.ts';
import { type LiveBlock, liveAt } from '../timeline/live_set.ts';
import type { Timeline } from '../timeline/timeline.ts';
import { ModuleNames, repeatedName } from './module_name.ts';

/** Bytes and blocks of one group. */
export interface Share {
  bytes: number;
  blocks: number;
}

export interface OwnerShare extends Share {
  readonly owner: Owner;
  /** For `unattributed`: what the module was doing when the block was made. `none` for every other owner. */
  readonly pass: Pass;
}

export interface StackShare extends Share {
  /** Node of the trace's calling-context tree. */
  readonly stack: number;
  /** String id of the operator. */
  readonly op: number;
}

export interface NamedShare extends Share {
  readonly name: string;
}

export interface PhaseShare extends Share {
  /** Phase id; 0 for blocks made outside every phase. */
  readonly phase: number;
}

/** One module, or all repetitions of it. */
export interface ModuleShare {
  readonly name: string;
  /** Class of the module; of the first one where several are together. */
  readonly className: string;
  /** Number of modules under this name that hold something. */
  readonly count: number;
  readonly own: Share;
  /** Own and of all modules inside. */
  readonly withChildren: Share;
  /** Own bytes by what the module was doing when the block was made. */
  readonly byPass: Readonly<Record<Pass, number>>;
}

/** The composition of `allocated` at one event. Lists are sorted by bytes, largest first. */
export interface Attribution {
  readonly event: number;
  readonly requested: number;
  readonly allocated: number;
  readonly blocks: readonly LiveBlock[];
  readonly owners: readonly OwnerShare[];
  /** Each module by its own name. The root and "no module" are under ''. */
  readonly modules: readonly ModuleShare[];
  /** Repetitions together: `layers.*.attention`. */
  readonly repeatedModules: readonly ModuleShare[];
  readonly operators: readonly NamedShare[];
  readonly stacks: readonly StackShare[];
  readonly origins: readonly PhaseShare[];
  /** Bytes of `allocated` that no storage of the trace accounts for. */
  readonly rest: number;
}

/** Name under which blocks without a module are listed. */
export const NO_MODULE = '(no module)';

/** Composition of the memory of `timeline`'s device during event `at`. Linear in the number of events before it. */
export function attributionAt(timeline: Timeline, at: number): Attribution {
  const { trace } = timeline;
  const { events } = trace;
  const event = Math.max(0, Math.min(at, timeline.length - 1));
  const blocks = timeline.length === 0 ? [] : liveAt(timeline, event);
  const owners = new Map<string, OwnerShare>();
  const operators = new Map<string, NamedShare>();
  const stacks = new Map<string, StackShare>();
  const origins = new Map<number, PhaseShare>();
  const modules = new ModuleShares(new ModuleNames(trace));
  let requested = 0;
  let allocated = 0;
  for (const block of blocks) {
    requested += block.requested;
    allocated += block.block;
    const made = block.madeBy;
    const owner = OWNERS[block.owner] ?? 'other';
    const pass: Pass = owner === 'unattributed' ? (PASSES[events.pass[made]] ?? 'none') : 'none';
    addTo(owners, `${owner} ${pass}`, block, () => ({ owner, pass, bytes: 0, blocks: 0 }));
    const name = trace.strings[events.op[made]] ?? '';
    addTo(operators, name, block, () => ({ name, bytes: 0, blocks: 0 }));
    const stack = events.stack[made];
    const op = events.op[made];
    addTo(stacks, `${stack} ${op}`, block, () => ({ stack, op, bytes: 0, blocks: 0 }));
    const phase = events.phase[made];
    addTo(origins, phase, block, () => ({ phase, bytes: 0, blocks: 0 }));
    modules.add(
      events.module[made],
      trace.modules[events.module[made]]?.className ?? '',
      PASSES[events.pass[made]] ?? 'none',
      block.block,
    );
  }
  const total = timeline.length === 0 ? 0 : timeline.series.allocated[event];
  return {
    event,
    requested,
    allocated: total,
    blocks,
    owners: bySize(owners.values()),
    modules: modules.finish((name) => name),
    repeatedModules: modules.finish(repeatedName),
    operators: bySize(operators.values()),
    stacks: bySize(stacks.values()),
    origins: bySize(origins.values()),
    rest: Math.max(0, total - allocated),
  };
}

function addTo<K, S extends Share>(
  shares: Map<K, S>,
  key: K,
  block: LiveBlock,
  create: () => S,
): void {
  let share = shares.get(key);
  if (share === undefined) {
    share = create();
    shares.set(key, share);
  }
  share.bytes += block.block;
  share.blocks++;
}

function bySize<S extends Share>(shares: Iterable<S>): S[] {
  return [...shares].sort((a, b) => b.bytes - a.bytes);
}

type MutablePasses = Record<Pass, number>;

interface OwnBytes {
  readonly className: string;
  readonly own: Share;
  readonly byPass: MutablePasses;
}

function noPasses(): MutablePasses {
  return Object.fromEntries(PASSES.map((pass) => [pass, 0])) as MutablePasses;
}

/** Bytes by cleaned module name, summed up the tree of names when finished. */
class ModuleShares {
  readonly #names: ModuleNames;
  readonly #own = new Map<string, OwnBytes>();

  constructor(names: ModuleNames) {
    this.#names = names;
  }

  add(module: number, className: string, pass: Pass, bytes: number): void {
    const name = module === 0 ? NO_MODULE : this.#names.of(module);
    let entry = this.#own.get(name);
    if (entry === undefined) {
      entry = { className, own: { bytes: 0, blocks: 0 }, byPass: noPasses() };
      this.#own.set(name, entry);
    }
    entry.own.bytes += bytes;
    entry.own.blocks++;
    entry.byPass[pass] += bytes;
  }

  /** One share a name after `rename`; names that fall together are added. */
  finish(rename: (name: string) => string): ModuleShare[] {
    interface Node {
      className: string;
      readonly members: Set<string>;
      readonly own: Share;
      readonly withChildren: Share;
      readonly byPass: MutablePasses;
    }
    const nodes = new Map<string, Node>();
    const node = (name: string): Node => {
      let found = nodes.get(name);
      if (found === undefined) {
        found = {
          className: '',
          members: new Set(),
          own: { bytes: 0, blocks: 0 },
          withChildren: { bytes: 0, blocks: 0 },
          byPass: noPasses(),
        };
        nodes.set(name, found);
      }
      return found;
    };
    for (const [name, entry] of this.#own) {
      const own = node(rename(name));
      if (own.className === '') own.className = entry.className;
      own.own.bytes += entry.own.bytes;
      own.own.blocks += entry.own.blocks;
      for (const pass of PASSES) own.byPass[pass] += entry.byPass[pass];
      for (const ancestor of ancestry(name)) {
        const outer = node(rename(ancestor));
        outer.members.add(ancestor);
        outer.withChildren.bytes += entry.own.bytes;
        outer.withChildren.blocks += entry.own.blocks;
      }
    }
    return [...nodes]
      .map(([name, { className, members, own, withChildren, byPass }]) => {
        return { name, className, count: members.size, own, withChildren, byPass };
      })
      .sort((a, b) => b.own.bytes - a.own.bytes || b.withChildren.bytes - a.withChildren.bytes);
  }
}

/** The name itself and the names around it, the root '' last. Blocks without a module stand alone. */
function ancestry(name: string): string[] {
  if (name === NO_MODULE || name === '') return [name];
  const names = [];
  for (let rest = name; rest !== ''; rest = rest.slice(0, Math.max(0, rest.lastIndexOf('.')))) {
    names.push(rest);
  }
  return [...names, ''];
}
