/** Exit statuses of every command. Documented in README.md. */
export const ExitStatus = {
  done: 0,
  /** `fit`: a variation does not fit. `compare --fail-above`: the threshold was passed. */
  doesNotFit: 1,
  /** Traced with uncovered parts; `fit`: unproven. */
  uncovered: 2,
  /** `allocator replay`: a line of the trace makes no sense; what came before it is written. */
  brokenTrace: 2,
  /** The command line, a file or the environment is wrong. */
  usage: 3,
  /** The training code itself failed. */
  trainingFailed: 4,
  /** Ended by Ctrl-C. */
  interrupted: 130,
} as const;

export type ExitStatus = (typeof ExitStatus)[keyof typeof ExitStatus];

/**
 * Something that the user can mend. The message says what happened and what to do next; the command line prints
 * it without a stack and exits with `exitStatus`.
 */
export class UserError extends Error {
  readonly code: string;
  readonly exitStatus: ExitStatus;

  constructor(
    code: string,
    message: string,
    options: { exitStatus?: ExitStatus; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'UserError';
    this.code = code;
    this.exitStatus = options.exitStatus ?? ExitStatus.usage;
  }
}
