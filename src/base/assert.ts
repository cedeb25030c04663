// Assertions are for bugs in this program; failures that a user can cause are `UserError`s (see errors.ts).

/** Narrows in place. @throws Error with `message` when `condition` is false. */
export function assertTrue(condition: boolean, message: string): asserts condition {
  if (!condition) throw new Error(message);
}

/** Returns `value` without null and undefined. @throws Error with `message`. */
export function ensureDefined<T>(value: T | null | undefined, message: string): T {
  if (value === null || value === undefined) throw new Error(message);
  return value;
}

/** Closes a switch: does not compile when a case is missing. */
export function assertUnreachable(value: never): never {
  throw new Error(`unexpected value ${JSON.stringify(value)}`);
}
