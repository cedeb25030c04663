// What a command is. One file in commands/ defines one command; commands.ts lists them.

import { ExitStatus } from '../base/errors.ts';
import type { OptionRow, OptionTable } from './option.ts';
import type { Output } from './output.ts';

export interface CommandContext {
  readonly output: Output;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Paths on the command line are relative to this folder. */
  readonly cwd: string;
  /**
   * Aborted by the first Ctrl-C. Asking for it takes Ctrl-C over from Node: the command must then end by itself
   * (a second Ctrl-C ends it at once). Commands that only compute need not ask.
   */
  readonly signal: AbortSignal;
}

export interface Example {
  /** Without the leading `memtracker`. */
  readonly command: string;
  readonly description: string;
}

export interface CommandDefinition<Config> {
  /** One word, or two for a member of a group (`cache list`). */
  readonly name: string;
  /** One sentence without a full stop, imperative. */
  readonly summary: string;
  /** More paragraphs for `--help` and the docs. */
  readonly description?: string;
  readonly options: OptionTable<Config>;
  readonly examples: readonly Example[];
  /** Nothing returned means `ExitStatus.done`. @throws UserError for what the user can mend. */
  // A method on purpose: its parameter is checked bivariantly, so that commands of different configs fit one registry.
  run(config: Config, context: CommandContext): Promise<ExitStatus | undefined>;
}

/** A command with its config type forgotten, as the registry, the parser and the docs see it. */
export interface Command {
  readonly name: string;
  readonly summary: string;
  readonly description?: string;
  readonly options: Readonly<Record<string, OptionRow<unknown>>>;
  readonly examples: readonly Example[];
  /** `config` must have passed the rows of `options`. */
  run(config: Readonly<Record<string, unknown>>, context: CommandContext): Promise<ExitStatus>;
}

export function defineCommand<Config>(definition: CommandDefinition<Config>): Command {
  return {
    ...definition,
    options: definition.options as Readonly<Record<string, OptionRow<unknown>>>,
    run: async (config, context) =>
      (await definition.run(config as Config, context)) ?? ExitStatus.done,
  };
}
