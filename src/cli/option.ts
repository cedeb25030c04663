// The option table. Everything that a user can write after a command's name is a row: options, flags, positionals and
// what stands after `--`. A command declares `OptionTable<Config>` for its own `Config` type, so that a config key
// without a row does not compile, and neither does a row whose value has another type than the key. Parsing
// (command_line.ts), `--help` and docs/cli.md (docs.ts) all come out of these rows.

import { z } from 'zod';
import type { Bytes } from '../base/bytes.ts';
import { parseBytes } from '../base/bytes.ts';

/** Where on the command line a value comes from. */
export type Placement = 'option' | 'flag' | 'list' | 'positional' | 'positionals' | 'passthrough';

export interface OptionRow<T> {
  readonly placement: Placement;
  /** What it does, one sentence without a full stop. */
  readonly description: string;
  /** The name of the value in the help: `DIR`, `GPU`, `BYTES`. Absent for a flag. */
  readonly value?: string;
  /** One letter, without the dash. */
  readonly short?: string;
  /** An environment variable that is read when the option is not given. */
  readonly env?: string;
  /** The default in words, where the value itself would not help a reader. */
  readonly defaultText?: string;
  /** Checks and converts what was written (a string, or a list of strings); undefined when nothing was. */
  readonly schema: z.ZodType<T, unknown>;
  /** What an absent option becomes, for the help. */
  readonly fallback?: T;
}

/** One row for each key of `Config`, in the order of the help (and of the positionals). */
export type OptionTable<Config> = { readonly [K in keyof Config]-?: OptionRow<Config[K]> };

interface RowText {
  readonly value?: string;
  readonly short?: string;
  readonly env?: string;
  readonly defaultText?: string;
}

function withFallback<T>(schema: z.ZodType<T, unknown>, fallback: T): z.ZodType<T, unknown> {
  return z.unknown().transform((raw, context): T => {
    if (raw === undefined) return fallback;
    const parsed = schema.safeParse(raw);
    if (parsed.success) return parsed.data;
    for (const issue of parsed.error.issues) context.addIssue(issue.message);
    return z.NEVER;
  });
}

function valueRow<T>(
  placement: Placement,
  description: string,
  schema: z.ZodType<T, unknown>,
  text: RowText,
): RequiredRow<T> {
  const row = { placement, description, ...text };
  return {
    ...row,
    schema: z.unknown().transform((raw, context): T => {
      if (raw === undefined) {
        context.addIssue('is required');
        return z.NEVER;
      }
      const parsed = schema.safeParse(raw);
      if (parsed.success) return parsed.data;
      for (const issue of parsed.error.issues) context.addIssue(issue.message);
      return z.NEVER;
    }),
    default: (fallback) => ({ ...row, schema: withFallback(schema, fallback), fallback }),
    optional: () => ({ ...row, schema: withFallback(schema.optional(), undefined) }),
  };
}

/** A row whose value must be given, unless it is continued with `.default(…)` or `.optional()`. */
export interface RequiredRow<T> extends OptionRow<T> {
  default(fallback: T): OptionRow<T>;
  optional(): OptionRow<T | undefined>;
}

/** `--name VALUE` with any schema over a string. */
export function option<T>(
  value: string,
  description: string,
  schema: z.ZodType<T, string>,
  text: Omit<RowText, 'value'> = {},
): RequiredRow<T> {
  return valueRow('option', description, schema, { value, ...text });
}

/** `--name VALUE`, any text. */
export function text(
  value: string,
  description: string,
  rest: Omit<RowText, 'value'> = {},
): RequiredRow<string> {
  return option(value, description, z.string().min(1, 'must not be empty'), rest);
}

/** `--name N`, a whole number of at least `minimum` (default 0). */
export function integer(
  value: string,
  description: string,
  rest: Omit<RowText, 'value'> & { minimum?: number } = {},
): RequiredRow<number> {
  const { minimum = 0, ...other } = rest;
  const schema = z
    .string()
    .regex(/^-?\d+$/, 'must be a whole number')
    .transform(Number)
    .refine((number) => Number.isSafeInteger(number) && number >= minimum, {
      message: `must be a whole number of at least ${minimum}`,
    });
  return option(value, description, schema, other);
}

/** `--name X`, a real number. */
export function real(
  value: string,
  description: string,
  rest: Omit<RowText, 'value'> = {},
): RequiredRow<number> {
  const schema = z
    .string()
    .transform((raw) => (raw.trim() === '' ? Number.NaN : Number(raw)))
    .refine(Number.isFinite, { message: 'must be a number' });
  return option(value, description, schema, rest);
}

/** `--name SIZE`: bytes, or a number with a unit (`512MiB`, `80GB`). */
export function size(
  value: string,
  description: string,
  rest: Omit<RowText, 'value'> = {},
): RequiredRow<Bytes> {
  const schema = z.string().transform((raw, context): Bytes => {
    try {
      return parseBytes(raw);
    } catch (error) {
      context.addIssue((error as Error).message);
      return z.NEVER;
    }
  });
  return option(value, description, schema, rest);
}

/** `--name CHOICE`, one of a fixed list. */
export function choice<const C extends string>(
  choices: readonly C[],
  description: string,
  rest: RowText = {},
): RequiredRow<C> {
  const schema = z.enum(choices, { error: `must be one of ${choices.join(', ')}` });
  return option(rest.value ?? choices.join('|'), description, schema, rest);
}

/** `--name`, true when given. */
export function flag(
  description: string,
  rest: Omit<RowText, 'value'> = {},
): OptionRow<boolean> & { readonly fallback: boolean } {
  const fromEnvironment = (raw: unknown) => raw === true || ['1', 'true', 'yes'].includes(`${raw}`);
  return {
    placement: 'flag',
    description,
    ...rest,
    schema: z.unknown().transform((raw) => raw !== undefined && fromEnvironment(raw)),
    fallback: false,
  };
}

/** `--name VALUE`, any number of times. Empty when not given. */
export function list<T = string>(
  value: string,
  description: string,
  item?: z.ZodType<T, string>,
  rest: Omit<RowText, 'value'> = {},
): OptionRow<readonly T[]> {
  const schema = z.array((item ?? z.string()) as z.ZodType<T, string>);
  return {
    placement: 'list',
    description,
    value,
    ...rest,
    schema: withFallback<readonly T[]>(schema as z.ZodType<readonly T[], unknown>, []),
  };
}

/** `--name KEY=VALUE`, any number of times; numbers and true/false become such. */
export function keyValues(
  description: string,
  rest: RowText = {},
): OptionRow<Readonly<Record<string, string | number | boolean>>> {
  const schema = z.array(z.string()).transform((pairs, context) => {
    const record: Record<string, string | number | boolean> = {};
    for (const pair of pairs) {
      const at = pair.indexOf('=');
      if (at <= 0) {
        context.addIssue(`must be written NAME=VALUE, got "${pair}"`);
        return z.NEVER;
      }
      record[pair.slice(0, at)] = scalar(pair.slice(at + 1));
    }
    return record;
  });
  return {
    placement: 'list',
    description,
    value: 'NAME=VALUE',
    ...rest,
    schema: withFallback(
      schema as z.ZodType<Record<string, string | number | boolean>, unknown>,
      {},
    ),
  };
}

/** A value as it is written on a command line: numbers and true/false become such. */
export function scalar(raw: string): string | number | boolean {
  if (raw === 'true' || raw === 'false') return raw === 'true';
  return raw.trim() !== '' && Number.isFinite(Number(raw)) ? Number(raw) : raw;
}

/** A positional argument: `memtracker report TRACE`. */
export function positional(value: string, description: string): RequiredRow<string> {
  return valueRow('positional', description, z.string(), { value });
}

/** All the remaining positional arguments, at least `minimum`. Must be the last positional. */
export function positionals(
  value: string,
  description: string,
  minimum = 0,
): OptionRow<readonly string[]> {
  const schema = z.array(z.string()).min(minimum, `needs at least ${minimum}`) as z.ZodType<
    readonly string[],
    unknown
  >;
  return {
    placement: 'positionals',
    description,
    value,
    schema: minimum === 0 ? withFallback(schema, []) : schema,
  };
}

/** What stands after `--`, untouched. */
export function passthrough(value: string, description: string): OptionRow<readonly string[]> {
  const schema = z.array(z.string()) as z.ZodType<readonly string[], unknown>;
  return { placement: 'passthrough', description, value, schema: withFallback(schema, []) };
}

/** `stackDepth` -> `--stack-depth`. */
export function optionName(key: string): string {
  return `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}
