// The rules of a scenario's ledger of external allocations, checked before anything is sent: an id stands for one live entry, sizes
// are whole bytes, labels are not empty.

/** One entry: memory outside PyTorch's caching allocator that a scenario declares. */
export interface LedgerEntry {
  readonly id: string;
  readonly bytes: number;
  readonly category: string;
}

export class Ledger {
  readonly #live = new Map<string, LedgerEntry>();

  /** @throws RangeError for an empty label, a live id, or bytes that are negative or fractional. Nothing has changed then. */
  checkAlloc(id: string, bytes: number, category: string): LedgerEntry {
    checkLabel('the id of an external allocation', id);
    checkLabel('the category of an external allocation', category);
    if (!Number.isSafeInteger(bytes) || bytes < 0) {
      throw new RangeError(
        `external allocation ${id}: bytes must be whole and not negative, got ${bytes}`,
      );
    }
    if (this.#live.has(id)) {
      throw new RangeError(
        `external allocation ${id} is live already; free it first or use another id`,
      );
    }
    return { id, bytes, category };
  }

  /** @throws RangeError for an id that is not live. */
  checkFree(id: string): LedgerEntry {
    const entry = this.#live.get(id);
    if (entry === undefined) throw new RangeError(`external allocation ${id} is not live`);
    return entry;
  }

  add(entry: LedgerEntry): void {
    this.#live.set(entry.id, entry);
  }

  remove(id: string): void {
    this.#live.delete(id);
  }

  live(): readonly LedgerEntry[] {
    return [...this.#live.values()];
  }
}

/** @throws RangeError when `text` is empty or blank. */
export function checkLabel(what: string, text: string): void {
  if (typeof text !== 'string' || text.trim() === '')
    throw new RangeError(`${what} must not be empty`);
}
