// What the real job will run on, as its owner declares it: one value for each component, from flags over a JSON file over a named profile
// over unknown. It is kept apart from what was observed (the checkout, the simulator) and from what is modelled, because all
// three differ: a job for NCCL 2.27 traced beside torch 2.14.1 is the usual case.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { UserError } from '../base/errors.ts';

export const IDENTITY_COMPONENTS = [
  'training_code',
  'torchao',
  'pytorch',
  'cuda',
  'nccl',
  'container',
] as const;
export type IdentityComponent = (typeof IDENTITY_COMPONENTS)[number];

export interface IdentityValue {
  /** Null: not known, or said not to be there. */
  readonly value: string | null;
  /** Where it was read: `suppressed` is an explicit null, which hides what lies below. */
  readonly from: 'flag' | 'file' | 'profile' | 'suppressed' | 'unknown';
  /** A profile is a fallback: it describes machines, not this job, so its values are assumed. */
  readonly evidence: 'declared' | 'assumed' | 'unknown';
}

export type RunIdentity = Readonly<Record<IdentityComponent, IdentityValue>>;

/** Text or null for each component; a name that is none is refused. */
const identitySchema = z.strictObject(
  Object.fromEntries(
    IDENTITY_COMPONENTS.map((name) => [name, z.string().min(1).nullable().optional()]),
  ) as Record<IdentityComponent, z.ZodOptional<z.ZodNullable<z.ZodString>>>,
);
export type IdentityLayer = z.infer<typeof identitySchema>;

/** @throws UserError naming the component that is not one, or the value that is no text. */
export function parseIdentity(raw: unknown, source: string): IdentityLayer {
  const parsed = identitySchema.safeParse(raw);
  if (parsed.success) return parsed.data;
  const faults = parsed.error.issues.map((issue) =>
    [issue.path.join('.'), issue.message].filter(Boolean).join(': '),
  );
  throw new UserError(
    'IDENTITY',
    `${source}: ${faults.join('; ')}. Components are ${IDENTITY_COMPONENTS.join(', ')}; each is a text, or null to say that ` +
      'nothing stands for it',
  );
}

/** The identity of a run from its three layers, the first that says something about a component wins. */
export function resolveIdentity(layers: {
  readonly flags?: IdentityLayer | undefined;
  readonly file?: IdentityLayer | undefined;
  readonly profile?: IdentityLayer | undefined;
}): RunIdentity {
  const resolved = {} as Record<IdentityComponent, IdentityValue>;
  for (const name of IDENTITY_COMPONENTS) {
    resolved[name] = { value: null, from: 'unknown', evidence: 'unknown' };
    for (const [from, layer] of [
      ['flag', layers.flags],
      ['file', layers.file],
      ['profile', layers.profile],
    ] as const) {
      const value = layer?.[name];
      if (value === undefined) continue;
      if (value === null) resolved[name] = { value, from: 'suppressed', evidence: 'unknown' };
      else resolved[name] = { value, from, evidence: from === 'profile' ? 'assumed' : 'declared' };
      break;
    }
  }
  return resolved;
}

/** `$XDG_CONFIG_HOME/memtracker/identities/NAME.json`, or under `~/.config`. */
export function identityProfilePath(
  name: string,
  env: Readonly<Record<string, string | undefined>>,
): string {
  const base = env.XDG_CONFIG_HOME ?? join(env.HOME ?? '.', '.config');
  return join(base, 'memtracker', 'identities', `${name}.json`);
}

/** @throws UserError when the file cannot be read, is not JSON, or names an unknown component. */
export async function readIdentity(path: string): Promise<IdentityLayer> {
  let raw: unknown;
  try {
    raw = JSON.parse(await readFile(path, 'utf8'));
  } catch (error) {
    throw new UserError(
      'IDENTITY',
      `cannot read the run identity ${path}: ${(error as Error).message}`,
    );
  }
  return parseIdentity(raw, path);
}
