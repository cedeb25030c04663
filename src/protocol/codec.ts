// Batches: the unit of the wire and of the trace file. `[version, run, sequence, events]` in msgpack.
//
// The envelope is checked with zod, the events against the table in events.ts. Events are many (a million in one trace), so
// their check is a loop over field kinds that is built once from the table, not a zod object per event.

import { Packr, Unpackr } from 'msgpackr';
import { z } from 'zod';
import { err, ok, type Result } from '../base/result.ts';
import {
  EVENTS,
  type EventName,
  type EventTuple,
  eventNameOf,
  type FieldKind,
  PROTOCOL_VERSION,
  type SidecarEvent,
} from './events.ts';

export interface Batch {
  readonly version: number;
  /** Nonce of the run; a frame of another run is refused. */
  readonly run: string;
  /** 0, 1, 2, … without gaps. */
  readonly sequence: number;
  readonly events: readonly EventTuple[];
}

const envelope = z.tuple([z.int().min(1), z.string(), z.int().min(0), z.array(z.unknown())]);

const unpackr = new Unpackr({ useRecords: false, mapsAsObjects: true, int64AsType: 'number' });
const packr = new Packr({ useRecords: false, mapsAsObjects: true, variableMapSize: true });

function isUint(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isFields(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
  return Object.values(value).every(
    (item) => isScalar(item) || (Array.isArray(item) && item.every(isScalar)),
  );
}

function isScalar(value: unknown): boolean {
  return value === null || ['string', 'number', 'boolean'].includes(typeof value);
}

const CHECKS: Readonly<Record<FieldKind, (value: unknown) => boolean>> = {
  uint: isUint,
  int: Number.isSafeInteger,
  real: (value) => typeof value === 'number',
  text: (value) => typeof value === 'string',
  flag: (value) => typeof value === 'boolean',
  uints: (value) => Array.isArray(value) && value.every(isUint),
  fields: isFields,
};

interface CompiledSpec {
  readonly name: EventName;
  readonly names: readonly string[];
  readonly checks: readonly ((value: unknown) => boolean)[];
}

const COMPILED: (CompiledSpec | undefined)[] = [];
for (const name of Object.keys(EVENTS) as EventName[]) {
  const { code, fields } = EVENTS[name];
  COMPILED[code] = {
    name,
    names: Object.keys(fields),
    checks: Object.values(fields).map((kind: FieldKind) => CHECKS[kind]),
  };
}

/** The first thing wrong with an event, or undefined when it is as the table says. */
export function eventFault(event: unknown): string | undefined {
  if (!Array.isArray(event)) return 'an event is not an array';
  const spec = typeof event[0] === 'number' ? COMPILED[event[0]] : undefined;
  if (spec === undefined) return `unknown event code ${String(event[0])}`;
  const { checks } = spec;
  if (event.length !== checks.length + 1) {
    return `${spec.name} has ${event.length - 1} fields instead of ${checks.length}`;
  }
  for (let i = 0; i < checks.length; i++) {
    if (!checks[i](event[i + 1])) {
      return `${spec.name}.${spec.names[i]} is ${JSON.stringify(event[i + 1])?.slice(0, 80)}`;
    }
  }
  return undefined;
}

/** Decodes and checks one frame. The error is a sentence fragment that names what is wrong. */
export function decodeBatch(frame: Uint8Array): Result<Batch> {
  let raw: unknown;
  try {
    raw = unpackr.unpack(frame);
  } catch (error) {
    return err(`not msgpack: ${(error as Error).message}`);
  }
  const parsed = envelope.safeParse(raw);
  if (!parsed.success) return err('not a batch of [version, run, sequence, events]');
  const [version, run, sequence, events] = parsed.data;
  if (version > PROTOCOL_VERSION) {
    return err(`protocol version ${version} is newer than ${PROTOCOL_VERSION}; update memtracker`);
  }
  for (let i = 0; i < events.length; i++) {
    const fault = eventFault(events[i]);
    if (fault !== undefined) return err(`event ${i} of batch ${sequence}: ${fault}`);
  }
  return ok({ version, run, sequence, events: events as unknown as readonly EventTuple[] });
}

/** Encodes a batch. Used by tests, by the generators of synthetic traces and by the recorder of TypeScript scenarios. */
export function encodeBatch(batch: Omit<Batch, 'version'>): Uint8Array {
  return packr.pack([PROTOCOL_VERSION, batch.run, batch.sequence, batch.events]);
}

/** An event as an object with named fields. The tuple must have passed {@link eventFault}. */
export function toObject(tuple: EventTuple): SidecarEvent {
  const spec = COMPILED[tuple[0]];
  if (spec === undefined) throw new Error(`unknown event code ${tuple[0]}`);
  const event: Record<string, unknown> = { type: eventNameOf(tuple[0]) };
  for (let i = 0; i < spec.names.length; i++) event[spec.names[i]] = tuple[i + 1];
  return event as unknown as SidecarEvent;
}

/** The tuple of an event object, fields in wire order. */
export function toTuple(event: SidecarEvent): EventTuple {
  const values = event as unknown as Record<string, unknown>;
  return [
    EVENTS[event.type].code,
    ...Object.keys(EVENTS[event.type].fields).map((name) => values[name]),
  ];
}
