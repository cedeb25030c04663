// When a figure was recorded and with which software, from the history of the framework's own checkout, and that software.
//
// A golden file is edited for other reasons than a new measurement, and moved: the figure belongs to the commit that brought it in,
// under whatever name its file had then.

import { access, mkdir } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { execa } from 'execa';
import { parse } from 'yaml';

export interface Recording {
  /** The commit that brought the figure in. */
  readonly commit: string;
  /** The file that holds it there. */
  readonly file: string;
  /** YYYY-MM-DD. */
  readonly date: string;
  /** The release of NVIDIA's PyTorch image that tests ran in then (YY.MM); null where the checkout does not name it. */
  readonly image: string | null;
  /** Revision of TransformerEngine that the commit's lock file names; null where the image's own is used. */
  readonly transformerEngine: string | null;
}

/** A figure in a golden file. */
export interface RecordedFigure {
  /** Path in the checkout. */
  readonly file: string;
  /** Folder under which the file lay at any time. */
  readonly folder: string;
  /** Name of the document beside it that holds the job's arguments. */
  readonly arguments: string;
  readonly figure: number;
  /** Which of the framework's images: `dev` or `lts`. */
  readonly environment: string;
  /** As file names say it: `a100`. */
  readonly gpu: string;
}

/** Undefined when the checkout has no history, or the figure is not in it. */
export async function recordingOf(
  checkout: string,
  recorded: RecordedFigure,
): Promise<Recording | undefined> {
  const origin = await originOf(checkout, recorded, [recorded.file]);
  if (origin === undefined) return undefined;
  const { commit, date, file } = origin;
  return {
    commit,
    date,
    file,
    image: await imageOf(checkout, commit, recorded.environment),
    transformerEngine: await transformerEngineOf(checkout, commit, recorded.environment),
  };
}

type Origin = Pick<Recording, 'commit' | 'date' | 'file'>;

/** The commit that brought the figure into these files, or, where its parent has it in others, into those. */
async function originOf(
  checkout: string,
  recorded: RecordedFigure,
  files: readonly string[],
): Promise<Origin | undefined> {
  const figure = String(recorded.figure);
  const history = await git(checkout, 'log', '--format=%H %cs', '-S', figure, '--', ...files);
  const [commit, date] = history?.trim().split('\n').at(-1)?.split(' ') ?? [];
  if (!commit || date === undefined) return undefined;
  const holding = async (revision: string, ...paths: readonly string[]) => {
    const found = await git(checkout, 'grep', '-l', figure, revision, '--', ...paths);
    return (found ?? '')
      .split('\n')
      .filter(Boolean)
      .map((line) => line.slice(line.indexOf(':') + 1));
  };
  const earlier = (await holding(`${commit}^`, recorded.folder)).filter(
    (file) => isOfSameKind(file, recorded) && !files.includes(file),
  );
  const moved = earlier.length > 0 ? await originOf(checkout, recorded, earlier) : undefined;
  if (moved !== undefined) return moved;
  const [file = recorded.file] = await holding(commit, ...files);
  return { commit, date, file };
}

/** Whether a file's name says the same environment and no other GPU: `golden_values_dev.json`, `…_dev_dgxa100_….json`. */
function isOfSameKind(file: string, { environment, gpu }: RecordedFigure): boolean {
  const name = basename(file);
  const named = /[ahg]b?\d00/.exec(name)?.[0];
  return name.includes(environment) && (named === undefined || named === gpu);
}

async function imageOf(
  checkout: string,
  commit: string,
  environment: string,
): Promise<string | null> {
  const at = (file: string) => git(checkout, 'show', `${commit}:${file}`);
  const named = await at(`docker/.ngc_version.${environment}`);
  // Before November 2025 the images stood in a stage of the CI, and in the test stage before April 2025.
  const stage =
    (await at('.gitlab/stages/01.build.yml')) ?? (await at('.gitlab/stages/01.test.yml'));
  const after = named ?? stage?.split(`Dockerfile.ci.${environment}`)[1];
  return /nvidia\/pytorch:(\d\d\.\d\d)/.exec(after ?? '')?.[1] ?? null;
}

/**
 * The development image installs what uv.lock names; before August 2025 there was none. The long-term image has the
 * TransformerEngine of its base unless its Dockerfile pins another.
 */
async function transformerEngineOf(
  checkout: string,
  commit: string,
  environment: string,
): Promise<string | null> {
  const at = (file: string) => git(checkout, 'show', `${commit}:${file}`);
  const docker =
    (await at(`docker/Dockerfile.ci.${environment}`)) ?? (await at(`Dockerfile.ci.${environment}`));
  const pinned = /TransformerEngine\.git@([0-9a-f]+)/.exec(docker ?? '')?.[1];
  if (pinned !== undefined) return pinned;
  if (environment === 'lts' && docker !== undefined) return null;
  const [, version, source] =
    /^name = "transformer-engine"\nversion = "([^"+]+)[^"]*"\nsource = (.*)$/m.exec(
      (await at('uv.lock')) ?? '',
    ) ?? [];
  if (version === undefined || source === undefined) return null;
  return /#([0-9a-f]{40})"/.exec(source)?.[1] ?? `v${version.split('.').slice(0, 2).join('.')}`;
}

/** Where repositories lie and where their older states may be put. */
export interface Repositories {
  readonly checkout: string;
  /** Repository of TransformerEngine; without it, the installed one is used. */
  readonly transformerEngine?: string | undefined;
  /** Folder for the older states; they are kept, since many figures share one. */
  readonly folder: string;
}

/** Folders of the software of a recording. */
export interface RecordedSoftware {
  readonly checkout: string;
  readonly transformerEngine?: string;
}

export async function softwareOf(
  { commit, transformerEngine }: Recording,
  repositories: Repositories,
): Promise<RecordedSoftware> {
  const folder = async (repository: string, kind: string, revision: string) => {
    const path = join(repositories.folder, kind, revision.slice(0, 12));
    await once(path, () => workTree(repository, revision, path));
    return path;
  };
  return {
    checkout: await folder(repositories.checkout, 'framework', commit),
    ...(transformerEngine !== null &&
      repositories.transformerEngine !== undefined && {
        transformerEngine: await folder(
          repositories.transformerEngine,
          'transformer_engine',
          transformerEngine,
        ),
      }),
  };
}

const running = new Map<string, Promise<void>>();

/** Cases run side by side and share work trees. */
function once(key: string, make: () => Promise<void>): Promise<void> {
  const known = running.get(key) ?? make();
  running.set(key, known);
  return known;
}

async function workTree(repository: string, revision: string, path: string): Promise<void> {
  if (await exists(path)) return;
  await mkdir(join(path, '..'), { recursive: true });
  // Under its own name only when it is whole: another run takes what is there.
  const half = `${path}.half`;
  const worktree = (...command: string[]) =>
    execa('git', ['-C', repository, 'worktree', ...command]);
  if (await exists(half)) await worktree('remove', '--force', half);
  await worktree('add', '--force', '--detach', half, revision);
  await worktree('move', half, path);
}

/** A script's path in an older checkout: scripts lay at the top before they moved into folders of examples. */
export async function scriptIn(checkout: string, script: string): Promise<string> {
  return (await exists(join(checkout, script))) ? script : basename(script);
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/** The document of a job's arguments as it stood beside the figure. */
export async function argumentsAt(
  checkout: string,
  { commit, file }: Recording,
  name: string,
): Promise<unknown> {
  const text = await git(checkout, 'show', `${commit}:${dirname(file)}/${name}`);
  return text === undefined ? undefined : parse(text);
}

async function git(checkout: string, ...command: string[]): Promise<string | undefined> {
  const { stdout, failed } = await execa('git', ['-C', checkout, ...command], { reject: false });
  return failed ? undefined : stdout;
}
