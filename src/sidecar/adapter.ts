// Adapters: `adapters/<framework>/` with a manifest.json (this schema) and an adapter.py. The manifest is what TypeScript
// needs to know of a framework: how a checkout of it looks, what it imports, which options its adapter takes.

import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { z } from 'zod';
import { UserError } from '../base/errors.ts';
import { packageFolder } from './package_folder.ts';

const scalar = z.union([z.string(), z.number(), z.boolean()]);

/** A single change of the framework's arguments that may make a job fit (`memtracker fit --suggest`). */
const suggestionManifestSchema = z.strictObject({
  title: z.string(),
  /** Only tried where the framework's configuration has this key, or the argument line this flag. */
  requires: z.string().optional(),
  /** Arguments to set; true is a bare flag, null leaves the argument out. */
  set: z.record(z.string(), scalar.nullable()).optional(),
  /** Whole-number arguments to halve. */
  halve: z.array(z.string()).optional(),
});
export type SuggestionManifest = z.infer<typeof suggestionManifestSchema>;

export const adapterManifestSchema = z.strictObject({
  /** Name on the command line; also the name of the folder. */
  name: z.string().regex(/^[a-z][a-z0-9_-]*$/),
  /** The framework's own spelling. */
  title: z.string(),
  /** One sentence without a full stop. */
  summary: z.string(),
  /** Whether the framework comes as a checkout. */
  checkout: z.boolean(),
  /** A folder is a checkout when every path of one of these lists exists in it. Empty when there is no checkout. */
  detect: z.array(z.array(z.string()).min(1)),
  /** What a person writes after `--`, for the help. */
  arguments: z.string(),
  /** Modules that the checkout cannot do without, and what pip calls them. */
  packages: z.array(z.strictObject({ module: z.string(), requirement: z.string() })),
  /** Lock file in python/requirements/ that `memtracker setup --framework` installs; null when nothing is needed. */
  requirements: z.string().nullable(),
  /** `--option NAME=VALUE`: assumptions and switches of the adapter. */
  options: z.record(
    z.string(),
    z.strictObject({
      description: z.string(),
      /** The values it takes; any value when absent. */
      values: z.array(scalar).optional(),
      /** What holds when it is not given, in words. */
      default: z.string(),
    }),
  ),
  /** Scenarios of `memtracker fit` besides steady training: arguments of the framework that switch them on. */
  scenarios: z.record(z.string(), z.record(z.string(), scalar.nullable())).default({}),
  /** What `memtracker fit --suggest` tries, the mildest first. */
  suggestions: z.array(suggestionManifestSchema).default([]),
});
export type AdapterManifest = z.infer<typeof adapterManifestSchema>;

export interface Adapter {
  readonly folder: string;
  readonly manifest: AdapterManifest;
}

/** All adapters of a folder, by name. @throws UserError naming a manifest that breaks the schema. */
export function loadAdapters(folder: string = packageFolder('adapters')): readonly Adapter[] {
  const adapters: Adapter[] = [];
  for (const name of readdirSync(folder).sort()) {
    const path = join(folder, name, 'manifest.json');
    if (!existsSync(path)) continue;
    adapters.push({ folder: join(folder, name), manifest: readManifest(path, name) });
  }
  return adapters;
}

function readManifest(path: string, name: string): AdapterManifest {
  let raw: unknown;
  try {
    raw = JSON.parse(readFileSync(path, 'utf8'));
  } catch (error) {
    throw new UserError('ADAPTER', `${path} is not JSON: ${(error as Error).message}`);
  }
  const parsed = adapterManifestSchema.safeParse(raw);
  if (!parsed.success) {
    throw new UserError('ADAPTER', `${path} is not a manifest:\n${z.prettifyError(parsed.error)}`);
  }
  if (parsed.data.name !== name) {
    throw new UserError('ADAPTER', `${path} says name "${parsed.data.name}", its folder ${name}`);
  }
  return parsed.data;
}

/** @throws UserError listing the frameworks there are. */
export function findAdapter(name: string, adapters: readonly Adapter[] = loadAdapters()): Adapter {
  const found = adapters.find((adapter) => adapter.manifest.name === name);
  if (found !== undefined) return found;
  const known = adapters.map((adapter) => adapter.manifest.name).join(', ');
  throw new UserError('FRAMEWORK', `no adapter for framework "${name}"; there are: ${known}`);
}

function looksLike(folder: string, manifest: AdapterManifest): boolean {
  return manifest.detect.some((paths) => paths.every((path) => existsSync(join(folder, path))));
}

/**
 * The absolute path of a checkout of this adapter's framework, or null when the framework has none.
 * @throws UserError when the folder is missing, is no checkout, or is one of another framework (which is named).
 */
export function checkCheckout(
  adapter: Adapter,
  checkout: string | undefined,
  cwd: string,
  adapters: readonly Adapter[] = loadAdapters(),
): string | null {
  const { manifest } = adapter;
  if (!manifest.checkout) {
    if (checkout === undefined) return null;
    throw new UserError(
      'CHECKOUT',
      `--framework ${manifest.name} takes no --checkout; name the script after --`,
    );
  }
  if (checkout === undefined) {
    throw new UserError(
      'CHECKOUT',
      `--framework ${manifest.name} needs --checkout DIR: the folder of your ${manifest.title} checkout`,
    );
  }
  const folder = resolve(cwd, checkout);
  if (!existsSync(folder) || !statSync(folder).isDirectory()) {
    throw new UserError('CHECKOUT', `--checkout ${checkout}: there is no such folder`);
  }
  if (looksLike(folder, manifest)) return folder;
  const other = adapters.find(
    ({ manifest: candidate }) => candidate.checkout && looksLike(folder, candidate),
  );
  if (other !== undefined) {
    throw new UserError(
      'CHECKOUT',
      `${folder} is a checkout of ${other.manifest.title}, not of ${manifest.title}; use --framework ${other.manifest.name}`,
    );
  }
  const expected = manifest.detect.map((paths) => paths.join(' and ')).join(', or ');
  throw new UserError(
    'CHECKOUT',
    `${folder} is not a checkout of ${manifest.title}: it should hold ${expected}`,
  );
}

/** @throws UserError for an option that the adapter does not have or a value that it does not take. */
export function checkAdapterOptions(
  adapter: Adapter,
  options: Readonly<Record<string, string | number | boolean>>,
): void {
  const { name, options: known } = adapter.manifest;
  for (const [key, value] of Object.entries(options)) {
    const row = known[key];
    if (row === undefined) {
      const names = Object.keys(known).join(', ') || 'none';
      throw new UserError('OPTION', `framework ${name} has no option "${key}"; it has: ${names}`);
    }
    if (row.values !== undefined && !row.values.includes(value)) {
      throw new UserError(
        'OPTION',
        `--option ${key} must be one of ${row.values.join(', ')}, got "${value}"`,
      );
    }
  }
}
