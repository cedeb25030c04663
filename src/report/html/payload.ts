// What an HTML report carries: written by payload_writer.ts, read by the page. Text and small tables are JSON; what there is one of
// for each block or event is a column of varints in one binary part. Both parts are deflated and stand in the page as base64.

import type { ReportDocument } from '../document_schema.ts';

export const PAYLOAD_VERSION = 1;

/** Columns of a device, in the order in which they stand in the binary part. */
export const COLUMNS = [
  // ---- one row a block, in order of birth
  /** Event that made the block; difference to the row before. */
  'born',
  /** Events that it lived: the first event without it, less `born`; 0: it outlives the trace. */
  'life',
  'requested',
  /** Bytes of the allocator's block beyond those requested. */
  'slack',
  'storage',
  'op',
  'stack',
  'module',
  'tensor',
  'pass',
  'stream',
  /** First owner and its name. */
  'owner',
  'ownerName',
  // ---- blocks that change their owner later, in order of events
  'changeEvent',
  'changeBlock',
  'changeOwner',
  'changeName',
  // ---- phase of every event, as runs
  'phaseRunLength',
  'phaseRunPhase',
  // ---- other kinds of memory, as steps: events (difference to the step before) and zigzag difference of the value
  'restEvent',
  'restStep',
  'waitingEvent',
  'waitingStep',
  'reservedEvent',
  'reservedStep',
  'externalEvent',
  'externalStep',
] as const;
export type ColumnName = (typeof COLUMNS)[number];

export interface ColumnPlace {
  readonly name: ColumnName;
  /** Values, not bytes. */
  readonly length: number;
  /** Bytes in the binary part. */
  readonly bytes: number;
}

export interface DevicePayload {
  readonly name: string;
  /** Number of events replayed. */
  readonly events: number;
  readonly blocks: number;
  /** False: every external figure is unknown and the columns are empty. */
  readonly externalKnown: boolean;
  readonly columns: readonly ColumnPlace[];
}

/** Another run, drawn beside or over the first: its summary and a sample of its timeline. */
export interface BesidePayload {
  readonly title: string;
  readonly document: ReportDocument;
  readonly devices: readonly BesideDevice[];
}

export interface BesideDevice {
  /** In the other run. */
  readonly name: string;
  /** The device of the first run that it stands beside. */
  readonly beside: string;
  /** Events of that run. */
  readonly event: readonly number[];
  /** The same instants on the axis of the first run: phases that match are laid over each other. */
  readonly alignedEvent: readonly number[];
  readonly allocated: readonly number[];
  readonly reserved: readonly number[];
}

export interface PhasePayload {
  /** Index of the enclosing phase in the list, -1 at the top. */
  readonly parent: number;
  readonly depth: number;
  /** Without the names around it. */
  readonly own: string;
  readonly title: string;
  readonly begin: number;
  readonly end: number;
}

export interface TensorPayload {
  readonly dtype: string;
  readonly layout: string;
  readonly shape: readonly number[];
}

/** The JSON part. Tables hold only what blocks refer to, renumbered; entry 0 is "none". */
export interface Payload {
  readonly version: typeof PAYLOAD_VERSION;
  readonly title: string;
  readonly document: ReportDocument;
  readonly devices: readonly DevicePayload[];
  readonly beside: readonly BesidePayload[];
  readonly strings: readonly string[];
  /** Names cleaned of wrappers, and classes. */
  readonly modules: readonly { readonly name: string; readonly className: string }[];
  readonly tensors: readonly TensorPayload[];
  /** Nodes of the calling-context tree: parent, file, function (strings), line. A parent has a smaller number. */
  readonly stacks: readonly (readonly [number, number, number, number])[];
  readonly phases: readonly PhasePayload[];
}
