// The rooms of src/ import one way: the order is the table in docs/architecture.md, the imports are those of the files.

import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

const REPOSITORY = fileURLToPath(new URL('..', import.meta.url));
const SOURCE = join(REPOSITORY, 'src');

/** First column of the table of rooms, from the top down. */
function documentedRooms(): string[] {
  const page = readFileSync(join(REPOSITORY, 'docs', 'architecture.md'), 'utf8');
  const section = page.split('\n## ').find((part) => part.startsWith('Rooms')) ?? '';
  return [...section.matchAll(/^\| `(\w+)`/gm)].map((row) => row[1]);
}

function sourceFiles(): string[] {
  return readdirSync(SOURCE, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.tsx?$/.test(entry.name))
    .map((entry) => join(entry.parentPath, entry.name))
    .filter((path) => !/\.test\.tsx?$/.test(path));
}

/** Absolute paths of what a file imports by a relative path: static, re-exported and dynamic. */
function imports(path: string): string[] {
  const text = readFileSync(path, 'utf8');
  const specifiers = text.matchAll(/(?:\bfrom|\bimport)\s*\(?\s*['"](\.{1,2}\/[^'"]+)['"]/g);
  return [...specifiers].map((match) => join(dirname(path), match[1]));
}

/** The folder directly under src/; undefined for src/index.ts and for what lies elsewhere. */
function roomOf(path: string): string | undefined {
  const parts = relative(SOURCE, path).split(sep);
  return parts.length > 1 && parts[0] !== '..' ? parts[0] : undefined;
}

test('every folder of src/ is a room of docs/architecture.md, and the other way round', () => {
  const folders = readdirSync(SOURCE, { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map((entry) => entry.name);
  expect(documentedRooms().sort()).toEqual(folders.sort());
});

test('a room imports from itself and from those before it', () => {
  const rooms = documentedRooms();
  const upwards: string[] = [];
  let seen = 0;
  for (const path of sourceFiles()) {
    const room = roomOf(path);
    if (room === undefined) continue;
    for (const target of imports(path)) {
      const from = roomOf(target);
      seen++;
      if (from === undefined || rooms.indexOf(from) > rooms.indexOf(room)) {
        upwards.push(`${relative(REPOSITORY, path)} imports ${relative(REPOSITORY, target)}`);
      }
    }
  }
  expect(upwards).toEqual([]);
  // A pattern that matches nothing would pass as well.
  expect(seen).toBeGreaterThan(500);
});
