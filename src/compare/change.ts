// What changed between two compositions: the same groups (owner, module, operator, call site) on both sides, by difference.

import type { Attribution } from '../attribution/attribution.ts';
import { callSite } from '../attribution/frames.ts';
import type { Trace } from '../trace/trace.ts';

export interface Change {
  readonly name: string;
  readonly a: number;
  readonly b: number;
  /** b - a. */
  readonly delta: number;
}

/** Each list by size of the difference, largest first; what did not change is left out. */
export interface Causes {
  readonly owners: readonly Change[];
  readonly modules: readonly Change[];
  readonly operators: readonly Change[];
  readonly callSites: readonly Change[];
}

export interface Side {
  readonly trace: Trace;
  readonly attribution: Attribution;
}

export function causesOf(a: Side, b: Side): Causes {
  return {
    owners: changes(a, b, ({ attribution }) => [
      ...attribution.owners.map(
        ({ owner, pass, bytes }) =>
          [pass === 'none' ? owner : `${owner} (${pass})`, bytes] as const,
      ),
      ['(not in the trace)', attribution.rest] as const,
    ]),
    modules: changes(a, b, ({ attribution }) =>
      attribution.repeatedModules.map(
        ({ name, own }) => [name === '' ? '(root)' : name, own.bytes] as const,
      ),
    ),
    operators: changes(a, b, ({ attribution }) =>
      attribution.operators.map(({ name, bytes }) => [name, bytes] as const),
    ),
    callSites: changes(a, b, ({ trace, attribution }) =>
      attribution.stacks.map(
        ({ op, stack, bytes }) => [siteName(trace, op, stack), bytes] as const,
      ),
    ),
  };
}

/** Without the line: it moves when somebody edits the file above it. */
function siteName(trace: Trace, op: number, stack: number): string {
  const site = callSite(trace, stack);
  const place =
    site === undefined
      ? '(no stack)'
      : `${site.file.split('/').slice(-2).join('/')} ${site.function}`;
  return `${trace.strings[op]}  ${place}`;
}

function changes(
  a: Side,
  b: Side,
  groups: (side: Side) => readonly (readonly [name: string, bytes: number])[],
): Change[] {
  const both = new Map<string, [number, number]>();
  for (const [index, side] of [a, b].entries()) {
    for (const [name, bytes] of groups(side)) {
      const entry = both.get(name) ?? [0, 0];
      entry[index] += bytes;
      both.set(name, entry);
    }
  }
  return [...both]
    .map(([name, [before, after]]) => ({ name, a: before, b: after, delta: after - before }))
    .filter(({ delta }) => delta !== 0)
    .sort((x, y) => Math.abs(y.delta) - Math.abs(x.delta));
}
