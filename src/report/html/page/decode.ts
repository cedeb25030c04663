// The payload of the page: from base64 and deflate to JSON and columns.

import { type ColumnName, type DevicePayload, PAYLOAD_VERSION, type Payload } from '../payload.ts';
import { readVarints } from '../varint.ts';

export type Columns = Readonly<Record<ColumnName, Float64Array>>;

export interface Decoded {
  readonly payload: Payload;
  /** In the order of `payload.devices`. */
  readonly columns: readonly Columns[];
}

/** Reads the two parts that the writer put into the page. @throws Error when they are not there or not of this version. */
export async function decodePage(): Promise<Decoded> {
  const [json, binary] = await Promise.all(['payload-json', 'payload-columns'].map(inflateElement));
  const payload = JSON.parse(new TextDecoder().decode(json)) as Payload;
  if (payload.version !== PAYLOAD_VERSION)
    throw new Error('this page holds data of another version');
  let offset = 0;
  const columns = payload.devices.map((device) => {
    const decoded = decodeColumns(device, binary.subarray(offset));
    offset += device.columns.reduce((sum, { bytes }) => sum + bytes, 0);
    return decoded;
  });
  return { payload, columns };
}

/** The columns of one device, whose binary part begins at the start of `binary`. */
export function decodeColumns(device: DevicePayload, binary: Uint8Array): Columns {
  const columns: Partial<Record<ColumnName, Float64Array>> = {};
  let offset = 0;
  for (const { name, length, bytes } of device.columns) {
    columns[name] = readVarints(binary.subarray(offset, offset + bytes), length);
    offset += bytes;
  }
  return columns as Columns;
}

async function inflateElement(id: string): Promise<Uint8Array> {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no ${id}`);
  const text = element.textContent ?? '';
  element.remove();
  const packed = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
