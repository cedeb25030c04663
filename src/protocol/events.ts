// Every event that a sidecar can send: its code, its fields in wire order, and what they mean.
//
// On the wire an event is a msgpack array `[code, ...fields]`. This table is the only definition: the TypeScript
// types are derived from it, and `python/memtracker_sidecar/protocol.py` is generated from it by
// `scripts/generate_protocol.ts` (a test fails when the two differ).
//
// An event's phase is the innermost phase that is open at its place in the stream, so events do not carry it.
// Identifiers (storage, stack, phase, …) are counted up from 1 by the sidecar and never used twice in one run;
// 0 means "none" (for `stream` and `pool`: the default one). Tables (string, stack, tensor, module) are sent before
// the first event that refers to them.

/** Kinds of field. `fields` is a small map of scalars and lists, for what is rare and open-ended. */
export type FieldKind = 'uint' | 'int' | 'real' | 'text' | 'flag' | 'uints' | 'fields';

export type Scalar = string | number | boolean | null;
export type Fields = { readonly [key: string]: Scalar | readonly Scalar[] };

interface FieldValue {
  readonly uint: number;
  readonly int: number;
  readonly real: number;
  readonly text: string;
  readonly flag: boolean;
  readonly uints: readonly number[];
  readonly fields: Fields;
}

export interface EventSpec {
  readonly code: number;
  readonly doc: string;
  readonly fields: Readonly<Record<string, FieldKind>>;
}

/** Raised when the meaning, order or number of fields changes; a reader refuses newer versions by name. */
export const PROTOCOL_VERSION = 1;

export const EVENTS = {
  // ---- tables
  string: { code: 1, doc: 'Interned text.', fields: { id: 'uint', text: 'text' } },
  stack: {
    code: 2,
    doc: 'A node of the calling-context tree: one Python frame (file, function: string ids) called from `parent`.',
    fields: { id: 'uint', parent: 'uint', file: 'uint', function: 'uint', line: 'uint' },
  },
  tensor: {
    code: 3,
    doc: 'What a tensor looks like: dtype and layout (string ids), sizes.',
    fields: { id: 'uint', dtype: 'uint', layout: 'uint', shape: 'uints' },
  },
  module: {
    code: 4,
    doc: 'An nn.Module by fully qualified name and class (string ids); `parent` is the enclosing module.',
    fields: { id: 'uint', parent: 'uint', name: 'uint', class: 'uint' },
  },
  device: {
    code: 5,
    doc: 'A device that tensors live on. `kind` is cuda or cpu; properties as torch.cuda.get_device_properties names them.',
    fields: { id: 'uint', kind: 'text', index: 'uint', name: 'text', properties: 'fields' },
  },
  // ---- storages
  alloc: {
    code: 10,
    doc: 'A storage came to life: one call of the allocator. `op`: string id of the operator; `pass`: see PASSES.',
    fields: {
      storage: 'uint',
      bytes: 'uint',
      device: 'uint',
      stream: 'uint',
      pool: 'uint',
      op: 'uint',
      stack: 'uint',
      module: 'uint',
      pass: 'uint',
      tensor: 'uint',
    },
  },
  free: {
    code: 11,
    doc: 'The last reference to a storage went away.',
    fields: { storage: 'uint' },
  },
  resize: {
    code: 12,
    doc: 'UntypedStorage.resize_: the new block is allocated first, then the old one is freed. 0 bytes only frees.',
    fields: {
      storage: 'uint',
      bytes: 'uint',
      stream: 'uint',
      pool: 'uint',
      op: 'uint',
      stack: 'uint',
      module: 'uint',
      pass: 'uint',
    },
  },
  owner: {
    code: 13,
    doc: 'From here on the storage belongs to `category` (see OWNERS) under `name` (string id).',
    fields: { storage: 'uint', category: 'uint', name: 'uint' },
  },
  // ---- streams and events
  record_stream: {
    code: 20,
    doc: 'Tensor.record_stream: the block may not be reused before the work queued on `stream` is done.',
    fields: { storage: 'uint', stream: 'uint' },
  },
  event_record: { code: 21, doc: 'cudaEventRecord.', fields: { event: 'uint', stream: 'uint' } },
  event_wait: {
    code: 22,
    doc: 'cudaStreamWaitEvent: `stream` waits, the host does not.',
    fields: { event: 'uint', stream: 'uint' },
  },
  event_synchronize: { code: 23, doc: 'The host waits for an event.', fields: { event: 'uint' } },
  stream_synchronize: {
    code: 24,
    doc: 'The host waits for a stream.',
    fields: { device: 'uint', stream: 'uint' },
  },
  device_synchronize: {
    code: 25,
    doc: 'The host waits for the device.',
    fields: { device: 'uint' },
  },
  // ---- where execution is
  phase_begin: {
    code: 30,
    doc: 'A labelled span opens (nested in the open one). labels: step, micro_batch, chunk, …; `time` in µs since start.',
    fields: { phase: 'uint', name: 'text', labels: 'fields', time: 'uint' },
  },
  phase_end: { code: 31, doc: 'The span closes.', fields: { phase: 'uint', time: 'uint' } },
  module_enter: { code: 32, doc: 'A module is entered.', fields: { module: 'uint', pass: 'uint' } },
  module_exit: { code: 33, doc: 'A module is left.', fields: { module: 'uint', pass: 'uint' } },
  // ---- allocator calls of the job
  empty_cache: { code: 40, doc: 'torch.cuda.empty_cache().', fields: { device: 'uint' } },
  reset_peak: {
    code: 41,
    doc: 'torch.cuda.reset_peak_memory_stats().',
    fields: { device: 'uint' },
  },
  set_fraction: {
    code: 42,
    doc: 'torch.cuda.set_per_process_memory_fraction.',
    fields: { device: 'uint', fraction: 'real' },
  },
  allocator_settings: {
    code: 43,
    doc: 'The job itself set PYTORCH_ALLOC_CONF (environment at start, or a call at run time).',
    fields: { conf: 'text' },
  },
  pool_create: {
    code: 44,
    doc: 'A private pool. kind: mempool or graph. options: no_split, use_on_oom.',
    fields: { pool: 'uint', device: 'uint', kind: 'text', options: 'fields' },
  },
  pool_begin: {
    code: 45,
    doc: 'Allocations are routed to the pool (use count +1).',
    fields: { pool: 'uint', stream: 'uint' },
  },
  pool_end: {
    code: 46,
    doc: 'Allocations are no longer routed to the pool.',
    fields: { pool: 'uint' },
  },
  pool_release: {
    code: 47,
    doc: 'One use of the pool ended (use count -1).',
    fields: { pool: 'uint' },
  },
  // ---- communication
  communicator: {
    code: 50,
    doc: 'A process group of this rank. `parent` when split from another; options: backend options, device_id, name.',
    fields: {
      communicator: 'uint',
      name: 'text',
      backend: 'text',
      ranks: 'uints',
      parent: 'uint',
      options: 'fields',
    },
  },
  communicator_destroy: {
    code: 51,
    doc: 'The group is destroyed.',
    fields: { communicator: 'uint' },
  },
  collective_begin: {
    code: 52,
    doc: 'kind (string id): all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv (batch_send, batch_recv inside batch_isend_irecv), barrier, …; `bytes`: payload of this rank as NCCL counts it (all_gather and reduce_scatter: the whole output or input); `peer`: global rank + 1 for point to point.',
    fields: {
      collective: 'uint',
      communicator: 'uint',
      kind: 'uint',
      bytes: 'uint',
      stream: 'uint',
      async: 'flag',
      peer: 'uint',
    },
  },
  collective_end: {
    code: 53,
    doc: 'wait() returned, or the call did when synchronous.',
    fields: { collective: 'uint' },
  },
  // ---- memory outside the caching allocator
  external_alloc: {
    code: 60,
    doc: 'A ledger entry of the job or of a scenario. detail: evidence, provenance, free metadata.',
    fields: { external: 'text', device: 'uint', category: 'text', bytes: 'uint', detail: 'fields' },
  },
  external_free: { code: 61, doc: 'The ledger entry ends.', fields: { external: 'text' } },
  // ---- what the run says of itself
  uncovered: {
    code: 70,
    doc: 'An operator or kernel whose memory is not known, or an assumption that was taken. kind: operator, kernel, data_dependent, feature. `bytes`: its size if known, -1 if not.',
    fields: {
      kind: 'text',
      name: 'text',
      detail: 'text',
      assumption: 'text',
      stack: 'uint',
      module: 'uint',
      bytes: 'int',
    },
  },
  garbage_collection: {
    code: 71,
    doc: 'CPython collected a generation.',
    fields: { generation: 'uint', collected: 'uint' },
  },
  progress: {
    code: 72,
    doc: 'For people: where the run is.',
    fields: { text: 'text', step: 'uint', steps: 'uint' },
  },
  log: {
    code: 73,
    doc: 'A message. level as in Python logging.',
    fields: { level: 'text', text: 'text' },
  },
  error: {
    code: 74,
    doc: 'The training code failed. exception: its class; cause: one paragraph; traceback: Python, innermost last; detail: operator, shapes, module.',
    fields: {
      exception: 'text',
      cause: 'text',
      traceback: 'text',
      detail: 'fields',
      fatal: 'flag',
    },
  },
  run: {
    code: 75,
    doc: 'Facts of the run: effective config, versions, observed source identity.',
    fields: { topic: 'text', facts: 'fields' },
  },
  close: {
    code: 76,
    doc: 'The last event of a run. status: done, failed, interrupted. `events` counts every event sent, this one included.',
    fields: { status: 'text', events: 'uint', counts: 'fields' },
  },
} as const satisfies Readonly<Record<string, EventSpec>>;

export type EventName = keyof typeof EVENTS;

/** `pass` of an allocation: what the module was doing. */
export const PASSES = ['none', 'forward', 'backward', 'recompute', 'optimizer'] as const;
export type Pass = (typeof PASSES)[number];

/** `category` of an owner event: an index into this list. New ones go to the end. */
export const OWNERS = [
  'unattributed',
  'parameter',
  'gradient',
  'buffer',
  'optimizer_state',
  'main_parameter',
  'main_gradient',
  'activation',
  'unsharded_parameter',
  'gradient_bucket',
  'communication',
  'recompute',
  'workspace',
  'input',
  'other',
] as const;
export type Owner = (typeof OWNERS)[number];

type FieldsOf<N extends EventName> = (typeof EVENTS)[N]['fields'];

/** One event as an object, for everything that is not on the hot path. */
export type SidecarEvent = {
  [N in EventName]: { readonly type: N } & {
    readonly [F in keyof FieldsOf<N>]: FieldsOf<N>[F] extends FieldKind
      ? FieldValue[FieldsOf<N>[F]]
      : never;
  };
}[EventName];

export type EventOf<N extends EventName> = Extract<SidecarEvent, { type: N }>;

/** An event as it travels: `[code, ...fields]`. */
export type EventTuple = readonly [code: number, ...fields: unknown[]];

const byCode: (EventName | undefined)[] = [];
for (const name of Object.keys(EVENTS) as EventName[]) byCode[EVENTS[name].code] = name;

export function eventNameOf(code: number): EventName | undefined {
  return byCode[code];
}

export function eventCode(name: EventName): number {
  return EVENTS[name].code;
}
