// Module names as the user wrote them. Wrappers put segments of their own into a fully qualified name; they are taken out, so
// that a name is the same with and without FSDP, activation checkpointing, DDP and torch.compile.

import type { ModuleMeta, Trace } from '../trace/trace.ts';

/**
 * Segments that only a wrapper makes: FSDP1 (torch.distributed.fsdp.fully_sharded_data_parallel.FSDP_WRAPPED_MODULE),
 * checkpoint_wrapper (torch.distributed.algorithms._checkpoint.checkpoint_wrapper._CHECKPOINT_WRAPPED_MODULE) and
 * torch.compile (torch._dynamo.eval_frame.OptimizedModule._orig_mod).
 */
const WRAPPER_SEGMENTS: ReadonlySet<string> = new Set([
  '_fsdp_wrapped_module',
  '_checkpoint_wrapped_module',
  '_orig_mod',
]);

/** Classes whose only child `module` is the wrapped model: torch DDP, Megatron-LM's DDP and Float16Module. */
const MODULE_WRAPPER_CLASSES: ReadonlySet<string> = new Set([
  'DistributedDataParallel',
  'DistributedDataParallelBase',
  'Float16Module',
  'FullyShardedDataParallel',
  'TorchFullyShardedDataParallel',
]);

/** Takes the segments of wrappers that name themselves out of a name. */
export function withoutWrapperSegments(name: string): string {
  if (!name.includes('_')) return name;
  return name
    .split('.')
    .filter((segment) => !WRAPPER_SEGMENTS.has(segment))
    .join('.');
}

/** `layers.11.attention` -> `layers.*.attention`: one name for all repetitions of a layer. */
export function repeatedName(name: string): string {
  return name.replace(/(^|\.)\d+(?=\.|$)/g, '$1*');
}

function isRootWrapper({ parent, className }: ModuleMeta): boolean {
  return parent === 0 && MODULE_WRAPPER_CLASSES.has(className);
}

/** Cleaned names of a trace's modules, by module id. */
export class ModuleNames {
  readonly #trace: Trace;
  readonly #names: (string | undefined)[] = [];

  constructor(trace: Trace) {
    this.#trace = trace;
  }

  /** '' for the root module and for no module (0). */
  of(module: number): string {
    let name = this.#names[module];
    if (name === undefined) {
      name = this.#clean(this.#trace.modules[module]);
      this.#names[module] = name;
    }
    return name;
  }

  #clean(meta: ModuleMeta | undefined): string {
    if (meta === undefined) return '';
    // A wrapper at the top may stand under the name of its class, which the names inside do not begin with.
    if (isRootWrapper(meta)) return '';
    let { name } = meta;
    // `module.module.decoder` under DDP(Float16Module(model)) is `decoder`.
    for (const wrapper of this.#wrappers(meta)) {
      const outer = isRootWrapper(wrapper) ? '' : wrapper.name;
      const prefix = outer === '' ? 'module' : `${outer}.module`;
      if (name === prefix) name = outer;
      else if (name.startsWith(`${prefix}.`)) {
        name = (outer === '' ? '' : `${outer}.`) + name.slice(prefix.length + 1);
      }
    }
    return withoutWrapperSegments(name);
  }

  /** The wrappers around a module, innermost first, so that an outer prefix is still whole when it is cut. */
  #wrappers(meta: ModuleMeta): ModuleMeta[] {
    const wrappers: ModuleMeta[] = [];
    for (let id = meta.parent; id !== 0; ) {
      const parent = this.#trace.modules[id];
      if (parent === undefined) break;
      if (MODULE_WRAPPER_CLASSES.has(parent.className)) wrappers.push(parent);
      id = parent.parent;
    }
    return wrappers;
  }
}
