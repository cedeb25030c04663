// Reads a fit specification from YAML (or JSON, which YAML contains). Errors name file, line, field and what is allowed.

import { readFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { isNode, LineCounter, parseDocument } from 'yaml';
import { UserError } from '../base/errors.ts';
import { type FitSpec, specSchema } from './spec.ts';

export interface SpecFile {
  readonly spec: FitSpec;
  /** Paths in the specification are relative to this folder. */
  readonly folder: string;
}

/** @throws UserError naming file, line and field. */
export async function readSpec(path: string): Promise<SpecFile> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    throw new UserError(
      'SPEC_OPEN',
      `cannot read ${path} (${(error as Error).message}); \`memtracker fit --init torchtitan\` writes a commented one`,
    );
  }
  return { spec: parseSpec(text, path), folder: dirname(path) };
}

/** @throws UserError with one line for each thing that is wrong. */
export function parseSpec(text: string, name: string): FitSpec {
  const lines = new LineCounter();
  // maxAliasCount bounds what a "billion laughs" file can expand to.
  const document = parseDocument(text, { lineCounter: lines, uniqueKeys: true });
  if (document.errors.length > 0) {
    const faults = document.errors.map((error) => {
      const line = lines.linePos(error.pos[0]).line;
      return `${name}:${line}: ${error.message.split('\n')[0]}`;
    });
    throw new UserError('SPEC_SYNTAX', faults.join('\n'));
  }
  const parsed = specSchema.safeParse(document.toJS({ maxAliasCount: 100 }) ?? {});
  if (parsed.success) return parsed.data;
  const faults = parsed.error.issues.map((issue) => {
    const path = issue.path.map((part) => (typeof part === 'symbol' ? String(part) : part));
    return `${name}:${lineOf(path)}: ${path.join('.') || 'specification'}: ${issue.message}`;
  });
  throw new UserError('SPEC_INVALID', faults.join('\n'));

  /** The line of the innermost node on the way to `path` that is in the file. */
  function lineOf(path: readonly (string | number)[]): number {
    for (let depth = path.length; depth >= 0; depth--) {
      const node = depth === 0 ? document.contents : document.getIn(path.slice(0, depth), true);
      if (isNode(node) && node.range) return lines.linePos(node.range[0]).line;
    }
    return 1;
  }
}
