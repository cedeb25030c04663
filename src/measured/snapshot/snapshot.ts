// What `torch.cuda.memory._dump_snapshot` writes, as columns and records. Fields and their meaning: PyTorch v2.14.1,
// torch/cuda/memory.py (`_snapshot`) and torch/csrc/cuda/memory_snapshot.cpp. Sizes are bytes, times microseconds since 1970.

import { Float64Column, Uint8Column, Uint32Column } from '../../trace/columns.ts';
import type { Plain } from '../pickle/values.ts';
import type { StackTable } from './stack_table.ts';

/** Actions of a trace entry that torch 2.1 to 2.14 write, by their code in {@link TraceEntries.action}. */
export const ACTIONS = [
  'alloc',
  'free_requested',
  'free_completed',
  'segment_alloc',
  'segment_free',
  'segment_map',
  'segment_unmap',
  'snapshot',
  'oom',
  'annotate',
] as const;
export type Action = (typeof ACTIONS)[number];

export const ActionCode = Object.fromEntries(ACTIONS.map((name, code) => [name, code])) as Readonly<
  Record<Action, number>
>;

/** Texts that many entries share, numbered from 0. */
export class TextTable {
  readonly #texts: string[] = [];
  readonly #ids = new Map<string, number>();

  constructor(first: readonly string[] = []) {
    for (const text of first) this.id(text);
  }

  get length(): number {
    return this.#texts.length;
  }

  id(text: string): number {
    let id = this.#ids.get(text);
    if (id === undefined) {
      id = this.#texts.length;
      this.#texts.push(text);
      this.#ids.set(text, id);
    }
    return id;
  }

  find(text: string): number | undefined {
    return this.#ids.get(text);
  }

  text(id: number): string {
    return this.#texts[id] ?? '';
  }
}

/** A column that only some entries have: row to text id + 1. */
export class SparseColumn {
  readonly rows = new Uint32Column();
  readonly texts = new Uint32Column();
}

/** All trace entries of a snapshot, row by row in file order. */
export class TraceEntries {
  readonly action = new Uint8Column();
  /** Address; for `oom`: free bytes of the device (`device_free`). */
  readonly address = new Float64Column();
  readonly size = new Float64Column();
  /** Index into `streams`. */
  readonly stream = new Uint32Column();
  /** 0 when the entry has none. */
  readonly time = new Float64Column();
  /** Node of {@link MemorySnapshot.stacks}. */
  readonly stack = new Uint32Column();
  readonly compileContext = new Uint32Column();
  readonly userMetadata = new Uint32Column();
  /** Index into `pools`: `0,0` is the default pool. */
  readonly pool = new Uint32Column();

  /** Action names by code; names unknown to {@link ACTIONS} follow them. */
  readonly actions = new TextTable(ACTIONS);
  /** `cudaStream_t` values in order of appearance. */
  readonly streams: number[] = [];
  readonly pools = new TextTable(['0,0']);
  readonly texts = new TextTable(['']);
  /** Fields that this program does not know, kept as JSON text. */
  readonly unknown = new Map<string, SparseColumn>();

  get length(): number {
    return this.action.length;
  }
}

export type BlockState = 'active_allocated' | 'active_pending_free' | 'inactive';

export interface Block {
  readonly address: number;
  /** Physical size. */
  readonly size: number;
  /** Size asked for; of an inactive block the one of its last use. Equals `size` in files that do not have it. */
  readonly requestedSize: number;
  readonly state: BlockState;
  readonly stack: number;
}

export interface Segment {
  readonly device: number;
  readonly address: number;
  readonly totalSize: number;
  readonly allocatedSize: number;
  readonly activeSize: number;
  readonly requestedSize: number;
  readonly stream: number;
  readonly kind: 'small' | 'large';
  readonly pool: string;
  readonly expandable: boolean;
  readonly stack: number;
  readonly blocks: readonly Block[];
  /** Fields that this program does not know. */
  readonly unknown: { readonly [key: string]: Plain };
}

/** Rows `first` to `first + count - 1` of the entries: the history of one device. */
export interface DeviceTrace {
  readonly device: number;
  readonly first: number;
  readonly count: number;
}

export interface ExternalAnnotation {
  readonly stage: string;
  readonly name: string;
  readonly device: number;
  readonly time: number;
}

export interface MemorySnapshot {
  readonly entries: TraceEntries;
  readonly stacks: StackTable;
  readonly segments: readonly Segment[];
  readonly deviceTraces: readonly DeviceTrace[];
  readonly allocatorSettings: { readonly [key: string]: Plain };
  readonly annotations: readonly ExternalAnnotation[];
  /** Top-level fields that this program does not know, or does not use (host_segments, host_traces). */
  readonly unknown: { readonly [key: string]: Plain };
}
