// Traces kept by content: `<key>.mtrace` in one folder. A trace enters by rename, so that a reader never sees half of one.

import { mkdir, readdir, rename, rm, stat, utimes } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { readTraceHeader } from '../trace/reader.ts';

export interface CachedTrace {
  readonly key: string;
  readonly path: string;
  readonly bytes: number;
  /** Last time it was used, milliseconds since the epoch. */
  readonly used: number;
}

/** `$XDG_CACHE_HOME/memtracker/traces`, or under `~/.cache`. `MEMTRACKER_CACHE` replaces `…/memtracker`. */
export function traceCacheFolder(env: Readonly<Record<string, string | undefined>>): string {
  const base =
    env.MEMTRACKER_CACHE ??
    join(env.XDG_CACHE_HOME ?? join(env.HOME ?? '.', '.cache'), 'memtracker');
  return join(base, 'traces');
}

export class TraceCache {
  readonly folder: string;

  constructor(folder: string) {
    this.folder = folder;
  }

  /** The path of a kept trace, or undefined. Counts as a use. */
  async get(key: string): Promise<string | undefined> {
    const path = this.#path(key);
    const found = await stat(path).catch(() => null);
    if (found === null) return undefined;
    const now = new Date();
    await utimes(path, now, now).catch(() => {});
    return path;
  }

  /** Where a trace that is being made is written. Its file is not in the cache until {@link keep}. */
  async partial(key: string): Promise<string> {
    await mkdir(this.folder, { recursive: true });
    return join(this.folder, `.${key}.${process.pid}@${hostname()}.partial`);
  }

  /** Takes a finished trace into the cache. */
  async keep(key: string, partial: string): Promise<string> {
    const path = this.#path(key);
    await rename(partial, path);
    return path;
  }

  /** Forgets a kept trace. */
  async drop(key: string): Promise<void> {
    await rm(this.#path(key), { force: true });
  }

  /** Keeps the trace of a run that failed where a person can read it; {@link get} does not find it. */
  async keepFailed(key: string, partial: string): Promise<string> {
    const path = join(this.folder, `${key}.failed.mtrace`);
    await rename(partial, path);
    return path;
  }

  /** All kept traces, the most recently used first. */
  async list(): Promise<CachedTrace[]> {
    const names = await readdir(this.folder).catch(() => []);
    const traces: CachedTrace[] = [];
    for (const name of names) {
      const match = /^([0-9a-f]{64})(?:\.failed)?\.mtrace$/.exec(name);
      if (match === null) continue;
      const path = join(this.folder, name);
      const found = await stat(path).catch(() => null);
      if (found !== null) {
        traces.push({ key: match[1], path, bytes: found.size, used: found.mtimeMs });
      }
    }
    return traces.sort((a, b) => b.used - a.used);
  }

  /**
   * Removes what was not used for `olderThanMs`, then the least recently used until at most `maxBytes` are left; half-made
   * traces of processes of this machine that are gone too (nodes share the folder). Returns what was removed.
   */
  async prune(limits: { olderThanMs?: number; maxBytes?: number }): Promise<CachedTrace[]> {
    const removed: CachedTrace[] = [];
    let kept = 0;
    const oldest = Date.now() - (limits.olderThanMs ?? Number.POSITIVE_INFINITY);
    for (const trace of await this.list()) {
      if (
        trace.used < oldest ||
        kept + trace.bytes > (limits.maxBytes ?? Number.POSITIVE_INFINITY)
      ) {
        await rm(trace.path, { force: true });
        removed.push(trace);
      } else {
        kept += trace.bytes;
      }
    }
    for (const name of await readdir(this.folder).catch(() => [])) {
      const [, owner, host] = /\.(\d+)@(.+)\.partial$/.exec(name) ?? [];
      if (host === hostname() && !isRunning(Number(owner))) {
        await rm(join(this.folder, name), { force: true });
      }
    }
    return removed;
  }

  /** One line about a kept trace: framework, world, rank, arguments. */
  async describe(trace: CachedTrace): Promise<string> {
    try {
      const header = await readTraceHeader(trace.path);
      return `${header.framework} rank ${header.rank}/${header.world} ${header.argv.join(' ')}`;
    } catch (error) {
      return `unreadable: ${(error as Error).message}`;
    }
  }

  #path(key: string): string {
    return join(this.folder, `${key}.mtrace`);
  }
}

function isRunning(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}
