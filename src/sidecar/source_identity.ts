// What a run was made from: the checkout's commit, whether it was changed since and how, and the environment variables
// that change memory. Nothing else of the environment is recorded: no paths, no secrets.

import { createHash } from 'node:crypto';
import { readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { execa } from 'execa';
import { MiB } from '../base/bytes.ts';

export interface SourceIdentity {
  /** HEAD; null when the folder is no git work tree or has no commit. */
  readonly commit: string | null;
  /** `git describe --tags --always`, null without git. */
  readonly describe: string | null;
  /** Tracked files differ from HEAD, or untracked files that git does not ignore exist. Null without git. */
  readonly dirty: boolean | null;
  /** SHA-256 over the binary diff against HEAD and the untracked files' names and contents; null when clean. */
  readonly diff_sha256: string | null;
}

const UNKNOWN: SourceIdentity = { commit: null, describe: null, dirty: null, diff_sha256: null };

/** Untracked content beyond this is hashed by name only, so that a data set in the checkout does not stop a trace. */
const MAX_UNTRACKED_BYTES = 64 * MiB;

/** Identity of a git work tree, {@link UNKNOWN} when it is none or git is not installed. */
export async function sourceIdentity(folder: string): Promise<SourceIdentity> {
  const git = async (...args: string[]): Promise<string | null> => {
    const result = await execa('git', ['-C', folder, ...args], {
      reject: false,
      stripFinalNewline: true,
      maxBuffer: 512 * MiB,
      env: { GIT_OPTIONAL_LOCKS: '0', LC_ALL: 'C' },
    });
    return result.exitCode === 0 ? result.stdout : null;
  };
  const top = await git('rev-parse', '--show-toplevel');
  if (top === null) return UNKNOWN;
  const commit = await git('rev-parse', 'HEAD');
  const describe = await git('describe', '--tags', '--always');
  const changed = commit === null ? '' : ((await git('diff', 'HEAD', '--binary', '--', '.')) ?? '');
  const untracked =
    (await git('ls-files', '--others', '--exclude-standard', '-z'))?.split('\0').filter(Boolean) ??
    [];
  const dirty = changed !== '' || untracked.length > 0;
  if (!dirty) return { commit, describe, dirty, diff_sha256: null };
  const hash = createHash('sha256').update(changed);
  await hashUntracked(hash, folder, untracked.sort());
  return { commit, describe, dirty, diff_sha256: hash.digest('hex') };
}

/** Files that decide what a program does; generated and hidden folders are left out. */
const SOURCE = /\.(py|toml|ya?ml|json|sh)$/;
const SKIPPED = /^(\..*|__pycache__|node_modules|build|dist)$/;

/** SHA-256 over the Python, TOML, YAML, JSON and shell files of a folder, names and contents. */
export async function folderSha256(folder: string): Promise<string> {
  const hash = createHash('sha256');
  const visit = async (path: string): Promise<void> => {
    const entries = await readdir(path, { withFileTypes: true }).catch(() => []);
    entries.sort((a, b) => (a.name < b.name ? -1 : 1));
    for (const entry of entries) {
      if (SKIPPED.test(entry.name)) continue;
      const child = join(path, entry.name);
      if (entry.isDirectory()) {
        await visit(child);
      } else if (entry.isFile() && SOURCE.test(entry.name)) {
        hash.update(`\0${child.slice(folder.length)}\0`);
        hash.update(await readFile(child));
      }
    }
  };
  await visit(folder);
  return hash.digest('hex');
}

async function hashUntracked(
  hash: ReturnType<typeof createHash>,
  folder: string,
  names: readonly string[],
): Promise<void> {
  let left = MAX_UNTRACKED_BYTES;
  for (const name of names) {
    hash.update(`\0${name}\0`);
    const path = join(folder, name);
    const size = (await stat(path).catch(() => null))?.size ?? Number.POSITIVE_INFINITY;
    if (size > left) continue;
    left -= size;
    hash.update(await readFile(path).catch(() => Buffer.alloc(0)));
  }
}

/** Variables that change what a training job allocates. Everything else stays out of traces. */
const RECORDED: readonly RegExp[] = [
  /^NCCL_/,
  /^TORCH_NCCL_/,
  /^NVTE_/,
  /^PYTORCH_(CUDA_)?ALLOC_CONF$/,
  /^PYTORCH_NO_CUDA_MEMORY_CACHING$/,
  /^CUBLAS_WORKSPACE_CONFIG$/,
  /^CUBLASLT_WORKSPACE_SIZE$/,
  /^CUDA_DEVICE_MAX_CONNECTIONS$/,
  /^CUDA_MODULE_LOADING$/,
  /^PYTHONPATH$/,
  /^TORCHINDUCTOR_/,
  /^TORCH_CUDNN_SDPA_DEPRIORITIZED$/,
  /^CAUSAL_CONV1D_DETERMINISTIC$/,
  /^NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN$/,
];

/** A value that holds a path or looks like a credential is replaced: its presence matters, its text does not. */
const PRIVATE = /[/\\]|token|secret|password/i;

/** The allow-listed variables of an environment, in the order of their names. */
export function decidingEnvironment(
  env: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  const deciding: Record<string, string> = {};
  for (const name of Object.keys(env).sort()) {
    const value = env[name];
    if (value === undefined || !RECORDED.some((pattern) => pattern.test(name))) continue;
    deciding[name] = value;
  }
  return deciding;
}

/** The same as a trace shows it. */
export function recordedEnvironment(
  env: Readonly<Record<string, string | undefined>>,
): Record<string, string> {
  return Object.fromEntries(
    Object.entries(decidingEnvironment(env)).map(([name, value]) => [
      name,
      PRIVATE.test(value) ? '(not recorded)' : value,
    ]),
  );
}
