// When a figure was recorded and with which container image, from the history of the framework's own checkout.
//
// A golden file is edited for other reasons than a new measurement; the figure belongs to the commit that brought it in.

import { execa } from 'execa';

export interface Recording {
  /** YYYY-MM-DD. */
  readonly date: string;
  /** The release of NVIDIA's PyTorch image that tests ran in then (YY.MM); null where the checkout does not name it. */
  readonly image: string | null;
}

/** A figure in a golden file. */
export interface RecordedFigure {
  /** Path in the checkout. */
  readonly file: string;
  readonly figure: number;
  /** Which of the framework's images: `dev` or `lts`. */
  readonly environment: string;
}

/** Undefined when the checkout has no history, or the figure is not in it. */
export async function recordingOf(
  checkout: string,
  { file, figure, environment }: RecordedFigure,
): Promise<Recording | undefined> {
  const history = await git(checkout, 'log', '--format=%H %cs', '-S', String(figure), '--', file);
  const [commit, date] = history?.trim().split('\n').at(-1)?.split(' ') ?? [];
  if (!commit || date === undefined) return undefined;
  return { date, image: await imageOf(checkout, commit, environment) };
}

async function imageOf(
  checkout: string,
  commit: string,
  environment: string,
): Promise<string | null> {
  const named = await git(checkout, 'show', `${commit}:docker/.ngc_version.${environment}`);
  // Before November 2025 the images stood in the build stage of the CI.
  const stage = named ?? (await git(checkout, 'show', `${commit}:.gitlab/stages/01.build.yml`));
  const after = named ?? stage?.split(`Dockerfile.ci.${environment}`)[1];
  return /nvidia\/pytorch:(\d\d\.\d\d)/.exec(after ?? '')?.[1] ?? null;
}

async function git(checkout: string, ...command: string[]): Promise<string | undefined> {
  const { stdout, failed } = await execa('git', ['-C', checkout, ...command], { reject: false });
  return failed ? undefined : stdout;
}
