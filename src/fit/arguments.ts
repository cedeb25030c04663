// Changes single arguments of a framework's argument line without knowing the framework.

import type { SpecScalar } from './spec.ts';

/** `"a b" c` -> ['a b', 'c']: quotes and backslashes as in a POSIX shell, nothing is expanded. @throws RangeError on an open quote. */
export function splitArguments(line: string): string[] {
  const words: string[] = [];
  let word: string | undefined;
  let quote = '';
  for (let i = 0; i < line.length; i++) {
    const char = line[i];
    if (quote !== '') {
      if (char === quote) quote = '';
      else if (char === '\\' && quote === '"' && i + 1 < line.length) word += line[++i];
      else word += char;
    } else if (char === '"' || char === "'") {
      quote = char;
      word ??= '';
    } else if (char === '\\' && i + 1 < line.length) {
      word = (word ?? '') + line[++i];
    } else if (/\s/.test(char)) {
      if (word !== undefined) words.push(word);
      word = undefined;
    } else {
      word = (word ?? '') + char;
    }
  }
  if (quote !== '') throw new RangeError(`a ${quote} is not closed in: ${line}`);
  if (word !== undefined) words.push(word);
  return words;
}

/** The argument list of a specification's `arguments`. */
export function argumentList(given: string | readonly SpecScalar[]): string[] {
  return typeof given === 'string' ? splitArguments(given) : given.map(String);
}

function flagOf(key: string): string {
  return key.startsWith('-') ? key : `--${key}`;
}

/**
 * A key that ends with a colon is a subcommand as tyro writes it (TorchTitan's `activation-checkpoint:full`): one word of
 * key and value. Flags of the program itself stand before the first of them.
 */
function isSubcommandKey(key: string): boolean {
  return key.endsWith(':');
}

/** Words that follow a flag belong to it until the next flag; `-1` and `-0.5` are values. */
function isFlag(word: string): boolean {
  return /^--?[a-z]/i.test(word);
}

/** The value after the last occurrence of `key`: undefined when it is absent, true for a bare flag. */
export function argumentValue(argv: readonly string[], key: string): string | true | undefined {
  if (isSubcommandKey(key)) return argv.findLast((word) => word.startsWith(key))?.slice(key.length);
  const flag = flagOf(key);
  for (let i = argv.length - 1; i >= 0; i--) {
    if (argv[i].startsWith(`${flag}=`)) return argv[i].slice(flag.length + 1);
    if (argv[i] === flag) {
      const next = argv[i + 1];
      return next === undefined || isFlag(next) ? true : next;
    }
  }
  return undefined;
}

/**
 * `argv` with `key` set to `value`: replaced where it stood (`--key value` and `--key=value`), appended where it did not.
 * `true` is the bare flag; `false` and null take the flag away. The form that was there is kept.
 */
export function setArgument(
  argv: readonly string[],
  key: string,
  value: SpecScalar | null,
): string[] {
  if (isSubcommandKey(key)) {
    const others = argv.filter((word) => !word.startsWith(key));
    return value === null || value === false ? others : [...others, `${key}${value}`];
  }
  const flag = flagOf(key);
  const result: string[] = [];
  let placed = false;
  const place = (joined: boolean) => {
    if (placed) return;
    placed = true;
    if (value === null || value === false) return;
    if (value === true) result.push(flag);
    else if (joined) result.push(`${flag}=${value}`);
    else result.push(flag, String(value));
  };
  for (let i = 0; i < argv.length; i++) {
    const word = argv[i];
    if (word === flag) {
      place(false);
      while (i + 1 < argv.length && !isFlag(argv[i + 1])) i++;
    } else if (word.startsWith(`${flag}=`)) {
      place(true);
    } else {
      result.push(word);
    }
  }
  if (placed) return result;
  const subcommand = argv.findIndex((word) => /^[a-z][\w.-]*:[\w-]+$/.test(word));
  const end = subcommand < 0 ? argv.length : subcommand;
  place(false);
  const added = result.splice(argv.length);
  result.splice(end, 0, ...added);
  return result;
}
