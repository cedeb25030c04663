// The folder of one run: mode 0700, holds the socket and the worker's specification, removed at the end.

import { accessSync, constants, existsSync, rmSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { UserError } from '../base/errors.ts';

/** `sun_path` holds 108 bytes on Linux and 104 on macOS, with the final NUL. */
const MAX_SOCKET_PATH = 103;
const SOCKET = 'events';
const PREFIX = 'memtracker-';

const open = new Set<string>();

// The last resort, for exits that no `finally` sees (a bug, a second Ctrl-C).
process.on('exit', () => {
  for (const folder of open) rmSync(folder, { recursive: true, force: true });
});

function isWritable(folder: string): boolean {
  try {
    accessSync(folder, constants.W_OK | constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** The shortest-lived place first; `/tmp` because TMPDIR may be too long a path for a socket. */
function candidates(env: NodeJS.ProcessEnv): string[] {
  const places = [env.XDG_RUNTIME_DIR ?? '', tmpdir(), '/tmp'];
  return places.filter((place) => place !== '' && existsSync(place) && isWritable(place));
}

export class PrivateFolder {
  readonly path: string;
  /** Where a Unix socket may lie, or null when every path is too long for one. */
  readonly socket: string | null;

  private constructor(path: string) {
    this.path = path;
    const socket = join(path, SOCKET);
    this.socket = Buffer.byteLength(socket) <= MAX_SOCKET_PATH ? socket : null;
  }

  /** @throws UserError when no place for temporary files can be written. */
  static async make(env: NodeJS.ProcessEnv = process.env): Promise<PrivateFolder> {
    const places = candidates(env);
    // mkdtemp appends six characters and makes the folder with mode 0700.
    const room = MAX_SOCKET_PATH - PREFIX.length - SOCKET.length - 8;
    const place = places.find((folder) => Buffer.byteLength(folder) <= room) ?? places[0];
    if (place === undefined) {
      throw new UserError(
        'TEMPORARY_FOLDER',
        'no folder for temporary files can be written; set TMPDIR to one',
      );
    }
    const path = await mkdtemp(join(place, PREFIX));
    open.add(path);
    return new PrivateFolder(path);
  }

  async remove(): Promise<void> {
    await rm(this.path, { recursive: true, force: true });
    open.delete(this.path);
  }
}
