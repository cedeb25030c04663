// Hand-over of work units to processes that this one does not start itself: `unit-<index>.json` in, `result-<index>.json` out,
// in one shared folder.

import { readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { UserError } from '../base/errors.ts';
import type { TraceResult } from './executor.ts';
import { workUnitSchema } from './work_unit.ts';

const requestSchema = z.strictObject({
  key: z.string().regex(/^[0-9a-f]{64}$/),
  unit: workUnitSchema,
});
export type UnitRequest = z.infer<typeof requestSchema>;

const resultSchema = z.strictObject({
  key: z.string(),
  path: z.string().nullable(),
  failure: z.string().nullable(),
});

export function unitFile(folder: string, index: number): string {
  return join(folder, `unit-${index}.json`);
}

export function unitResultFile(folder: string, index: number): string {
  return join(folder, `result-${index}.json`);
}

/** @throws UserError when the file is missing or is not a unit. */
export async function readUnit(path: string): Promise<UnitRequest> {
  try {
    return requestSchema.parse(JSON.parse(await readFile(path, 'utf8')));
  } catch (error) {
    throw new UserError('UNIT', `${path} is not a work unit: ${(error as Error).message}`);
  }
}

export async function writeUnitResult(path: string, result: TraceResult): Promise<void> {
  await writeFile(`${path}.partial`, JSON.stringify(result));
  await rename(`${path}.partial`, path);
}

/** The result for `key`, or undefined when there is none (yet), or only one of an earlier run. */
export async function readUnitResult(path: string, key: string): Promise<TraceResult | undefined> {
  const text = await readFile(path, 'utf8').catch(() => null);
  if (text === null) return undefined;
  const parsed = resultSchema.safeParse(JSON.parse(text));
  return parsed.success && parsed.data.key === key ? parsed.data : undefined;
}
