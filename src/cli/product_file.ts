// Writes a product to a file that the user named.

import { writeFile } from 'node:fs/promises';
import { UserError } from '../base/errors.ts';

/** @throws UserError when the file cannot be written. */
export async function writeProduct(path: string, content: string): Promise<void> {
  try {
    await writeFile(path, content);
  } catch (error) {
    throw new UserError('write-product', `cannot write ${path}: ${(error as Error).message}`, {
      cause: error,
    });
  }
}
