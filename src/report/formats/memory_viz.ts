// The pickle of `torch.cuda.memory._dump_snapshot`, for pytorch.org/memory_viz and `python -m torch.cuda._memory_viz`. Fields as
// PyTorch 2.14.1 writes them (torch/csrc/cuda/memory_snapshot.cpp, torch/cuda/memory.py `_snapshot`).
//
// It is a prediction and says so: `allocator_settings["memtracker"]`, and the metadata of each allocation. Times order the entries,
// one microsecond an event of the trace; addresses are those of the modelled allocator.

import type { Analysis, DeviceAnalysis } from '../../attribution/analysis.ts';
import { ModuleNames } from '../../attribution/module_name.ts';
import { UserError } from '../../base/errors.ts';
import { type AllocatorHistory, TRACE_ACTIONS } from '../../timeline/allocator_history.ts';
import { framesOf, type Trace } from '../../trace/trace.ts';
import type { ExportFormat } from './format.ts';
import { PickleWriter, Shared } from './pickle_writer.ts';

export const memoryViz: ExportFormat = {
  name: 'memory_viz',
  extension: 'pickle',
  description: 'CUDA memory snapshot: pytorch.org/memory_viz, python -m torch.cuda._memory_viz',
  write(analysis, device) {
    const history = device.allocatorHistory();
    if (history === null) {
      throw new UserError(
        'export-not-modelled',
        `${device.name} has no CUDA caching allocator, which is what memory_viz shows`,
      );
    }
    return new SnapshotPickle(analysis, device, history).write();
  },
  recorded: ({ snapshot }) => snapshot(),
};

/** Rows after which the chunks so far are handed on. */
const ROWS_A_DRAIN = 4096;

class SnapshotPickle {
  readonly #trace: Trace;
  readonly #device: DeviceAnalysis;
  readonly #history: AllocatorHistory;
  readonly #pickle = new PickleWriter();
  readonly #stacks = new Map<number, Shared>();
  readonly #names: ModuleNames;
  /** Microseconds since 1970 of event 0. */
  readonly #epoch: number;

  constructor(analysis: Analysis, device: DeviceAnalysis, history: AllocatorHistory) {
    this.#trace = analysis.trace;
    this.#device = device;
    this.#history = history;
    this.#names = new ModuleNames(analysis.trace);
    const created = Date.parse(analysis.trace.header.created);
    this.#epoch = Number.isNaN(created) ? 0 : created * 1000;
  }

  *write(): Generator<Uint8Array> {
    const pickle = this.#pickle;
    // A list of dicts of a million entries is too long to hold: entries are written one by one, between hand-made ends.
    const chunks: Uint8Array[] = [];
    pickle.dict({
      segments: () => pickle.list(this.#segments()),
      device_traces: () => pickle.list(this.#deviceTraces(chunks)),
      allocator_settings: () => this.#settings(),
      external_annotations: () => pickle.list(this.#annotations()),
    });
    yield* chunks;
    yield* pickle.finish();
  }

  *#segments(): Generator<() => void> {
    const pickle = this.#pickle;
    const madeBy = this.#lastAllocations();
    for (const segment of this.#history.segments) {
      yield () =>
        pickle.dict({
          device: () => pickle.int(segment.device),
          address: () => pickle.int(segment.address),
          total_size: () => pickle.int(segment.total_size),
          allocated_size: () => pickle.int(segment.allocated_size),
          active_size: () => pickle.int(segment.active_size),
          requested_size: () => pickle.int(segment.requested_size),
          stream: () => pickle.int(segment.stream),
          segment_type: () => pickle.text(segment.segment_type),
          segment_pool_id: () => pickle.pair(...segment.segment_pool_id),
          is_expandable: () => pickle.flag(segment.is_expandable),
          frames: () => this.#frames(0),
          blocks: () =>
            pickle.list(
              segment.blocks.map((block) => () => {
                const event = madeBy.get(block.address);
                const live = block.state !== 'inactive' && event !== undefined;
                pickle.dict({
                  address: () => pickle.int(block.address),
                  size: () => pickle.int(block.size),
                  requested_size: () => pickle.int(block.requested_size),
                  state: () => pickle.text(block.state),
                  frames: () => this.#frames(live ? this.#trace.events.stack[event] : 0),
                });
              }),
            ),
        });
    }
  }

  /** By address: the event of the latest allocation there. */
  #lastAllocations(): Map<number, number> {
    const { length, action, address, event } = this.#history;
    const alloc = TRACE_ACTIONS.indexOf('alloc');
    const last = new Map<number, number>();
    for (let i = 0; i < length; i++) if (action[i] === alloc) last.set(address[i], event[i]);
    return last;
  }

  /** One list a device index; those of other devices are empty. */
  *#deviceTraces(chunks: Uint8Array[]): Generator<() => void> {
    const pickle = this.#pickle;
    for (let index = 0; index < this.#device.meta.index; index++) yield () => pickle.list([]);
    yield () => pickle.list(this.#entries(chunks));
  }

  *#entries(chunks: Uint8Array[]): Generator<() => void> {
    const pickle = this.#pickle;
    const { length, action, address, size, stream, pool, pools, event } = this.#history;
    for (let i = 0; i < length; i++) {
      if (i % ROWS_A_DRAIN === 0) chunks.push(...pickle.drain());
      yield () => {
        const name = TRACE_ACTIONS[action[i]];
        const place = event[i];
        const made = name === 'alloc' || name === 'segment_alloc' || name === 'segment_map';
        const fields: Record<string, () => void> = {
          action: () => pickle.text(name),
          [name === 'oom' ? 'device_free' : 'addr']: () => pickle.int(address[i]),
          size: () => pickle.int(size[i]),
          stream: () => pickle.int(stream[i]),
          time_us: () => pickle.int(this.#epoch + place),
          compile_context: () => pickle.text('N/A'),
          user_metadata: () => pickle.text(name === 'alloc' ? this.#metadata(place) : ''),
          pool_id: () => pickle.pair(...pools[pool[i]]),
          frames: () => this.#frames(made ? this.#trace.events.stack[place] : 0),
        };
        pickle.dict(fields);
      };
    }
  }

  #metadata(event: number): string {
    const { events, strings } = this.#trace;
    const module = this.#names.of(events.module[event]);
    const op = strings[events.op[event]];
    return module === '' ? `predicted: ${op}` : `predicted: ${op} in ${module}`;
  }

  /** Phases, as torch.cuda.memory's `global_record_annotations` would have recorded them. */
  *#annotations(): Generator<() => void> {
    const pickle = this.#pickle;
    const { index } = this.#device.meta;
    const edges = this.#device.timeline.phases.flatMap(({ phase }) => {
      const outer = this.#trace.phases[phase.parent];
      const name = outer === undefined ? phase.path : phase.path.slice(outer.path.length + 1);
      return [
        { event: phase.beginEvent, stage: 'START', name },
        { event: phase.endEvent, stage: 'END', name },
      ];
    });
    edges.sort((a, b) => a.event - b.event);
    for (const { event, stage, name } of edges) {
      yield () =>
        pickle.dict({
          stage: () => pickle.text(stage),
          name: () => pickle.text(name),
          device: () => pickle.int(index),
          time_us: () => pickle.int(this.#epoch + event),
        });
    }
  }

  #settings(): void {
    const pickle = this.#pickle;
    const { config } = this.#history;
    const { memtracker, origin } = this.#trace.header;
    const unlimited = config.maxSplitSize === Number.POSITIVE_INFINITY;
    const divisions = config.roundupPower2Divisions;
    pickle.dict({
      memtracker: () =>
        pickle.text(`predicted by memtracker ${memtracker} (${origin}); not measured`),
      PYTORCH_CUDA_ALLOC_CONF: () => pickle.text(this.#confText()),
      max_split_size: () => pickle.int(unlimited ? -1 : config.maxSplitSize),
      garbage_collection_threshold: () => pickle.float(config.garbageCollectionThreshold),
      expandable_segments: () => pickle.flag(config.expandableSegments),
      release_lock_on_cudamalloc: () => pickle.flag(false),
      roundup_power2_divisions: () =>
        pickle.dict(
          Object.fromEntries(
            // Keys are the upper ends of the intervals in MiB: 1, 2, 4, …
            (divisions ?? Array.from({ length: 16 }, () => 0)).map((value, i) => [
              String(2 ** i),
              () => pickle.int(value),
            ]),
          ),
        ),
    });
  }

  /** What the job or the caller set; the allocator keeps only its meaning. */
  #confText(): string {
    const parts = [];
    const { config } = this.#history;
    if (config.expandableSegments) parts.push('expandable_segments:True');
    if (config.maxSplitSize !== Number.POSITIVE_INFINITY) {
      parts.push(`max_split_size_mb:${config.maxSplitSize / 2 ** 20}`);
    }
    if (config.largeSegmentSize !== 20 * 2 ** 20) {
      parts.push(`large_segment_size_mb:${config.largeSegmentSize / 2 ** 20}`);
    }
    return parts.join(',');
  }

  /** Innermost first, as torch writes them. */
  #frames(stack: number): void {
    let shared = this.#stacks.get(stack);
    if (shared === undefined) {
      const frames = framesOf(this.#trace, stack);
      shared = new Shared((pickle) =>
        pickle.list(
          frames.map(
            (frame) => () =>
              pickle.dict({
                name: () => pickle.text(frame.function),
                filename: () => pickle.text(frame.file),
                line: () => pickle.int(frame.line),
              }),
          ),
        ),
      );
      this.#stacks.set(stack, shared);
    }
    this.#pickle.shared(shared);
  }
}
