// From argv to a checked config and an exit status. commander splits the line and writes the help; the rows of the
// option table (option.ts) say what may stand on it.

import {
  Argument,
  Command as CommanderCommand,
  CommanderError,
  Option as CommanderOption,
} from 'commander';
import { ExitStatus, UserError } from '../base/errors.ts';
import type { Command, CommandContext } from './command.ts';
import { type OptionRow, optionName } from './option.ts';
import { Output } from './output.ts';

export interface Invocation {
  /** Without node and the script: `process.argv.slice(2)`. */
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  readonly stdout: NodeJS.WriteStream;
  readonly stderr: NodeJS.WriteStream;
  readonly version: string;
  /** Called once, when a command first asks for the signal. */
  readonly onInterrupt?: (listener: () => void) => void;
}

/** Runs one command line to its end and returns the exit status. Never throws for what a user can cause. */
export async function runCommandLine(
  commands: readonly Command[],
  invocation: Invocation,
): Promise<ExitStatus> {
  const { own, rest } = splitAtDoubleDash(invocation.argv);
  const quiet = own.includes('--quiet') || own.includes('-q');
  const output = new Output({ ...invocation, quiet });
  const controller = new AbortController();
  let status: ExitStatus = ExitStatus.done;

  const program = new CommanderCommand('memtracker')
    .description(
      'Predicts the GPU memory of a training job without a GPU: does it fit, by how much, what is there at the peak.',
    )
    .version(invocation.version, '-V, --version', 'print the version')
    .helpCommand(false)
    .showHelpAfterError(false)
    .configureOutput({
      writeOut: (text) => output.product(text),
      writeErr: () => undefined,
      getOutHelpWidth: () => output.width,
    })
    .exitOverride();

  for (const command of commands) {
    const parsed = addCommand(program, command);
    parsed.action(async () => {
      const config = checkedConfig(command, parsed, rest, invocation.env);
      const context: CommandContext = {
        output,
        env: invocation.env,
        cwd: invocation.cwd,
        get signal() {
          listen();
          return controller.signal;
        },
      };
      status = await command.run(config, context);
    });
  }

  let listening = false;
  function listen(): void {
    if (listening) return;
    listening = true;
    invocation.onInterrupt?.(() => controller.abort(new Interrupted()));
  }

  try {
    if (own.length === 0) {
      output.product(program.helpInformation());
      return ExitStatus.usage;
    }
    await program.parseAsync([...own], { from: 'user' });
    return controller.signal.aborted ? ExitStatus.interrupted : status;
  } catch (error) {
    output.endProgress();
    if (controller.signal.aborted) {
      output.error('interrupted');
      return ExitStatus.interrupted;
    }
    return reportFailure(error, output);
  }
}

/** The reason of the signal after Ctrl-C. */
export class Interrupted extends UserError {
  constructor() {
    super('interrupted', 'interrupted', { exitStatus: ExitStatus.interrupted });
  }
}

function reportFailure(error: unknown, output: Output): ExitStatus {
  if (error instanceof UserError) {
    output.error(error.message);
    return error.exitStatus;
  }
  if (error instanceof CommanderError) {
    if (error.exitCode === 0 || error.code === 'commander.help') {
      return error.exitCode === 0 ? ExitStatus.done : ExitStatus.usage;
    }
    output.error(
      `${error.message.replace(/^error: /, '').replaceAll('\n', ' ')}; see memtracker --help`,
    );
    return ExitStatus.usage;
  }
  const stack = error instanceof Error ? (error.stack ?? error.message) : String(error);
  output.error(`this is a bug in memtracker, please report it with the lines below\n${stack}`);
  return ExitStatus.usage;
}

function splitAtDoubleDash(argv: readonly string[]): { own: string[]; rest?: string[] } {
  const at = argv.indexOf('--');
  if (at < 0) return { own: [...argv] };
  return { own: argv.slice(0, at), rest: argv.slice(at + 1) };
}

const QUIET = new CommanderOption('-q, --quiet', 'no notes and no progress on stderr');

function addCommand(program: CommanderCommand, command: Command): CommanderCommand {
  const words = command.name.split(' ');
  const parent = words.length === 1 ? program : groupOf(program, words[0]);
  const parsed = parent
    .command(words.at(-1) as string)
    .summary(command.summary)
    .description(descriptionOf(command))
    .allowExcessArguments(false);
  for (const [key, row] of Object.entries(command.options)) addRow(parsed, key, row);
  parsed.addOption(QUIET);
  parsed.addHelpText('after', () => helpTail(command));
  return parsed;
}

function groupOf(program: CommanderCommand, name: string): CommanderCommand {
  const existing = program.commands.find((command) => command.name() === name);
  return existing ?? program.command(name).description(`commands about ${name}`);
}

function descriptionOf(command: Command): string {
  const paragraphs = [`${command.summary}.`];
  if (command.description !== undefined) paragraphs.push(command.description);
  return paragraphs.join('\n\n');
}

function addRow(parsed: CommanderCommand, key: string, row: OptionRow<unknown>): void {
  if (row.placement === 'passthrough') return;
  if (row.placement === 'positional' || row.placement === 'positionals') {
    const name = row.value ?? key.toUpperCase();
    const required = !row.schema.safeParse(undefined).success;
    const text = row.placement === 'positionals' ? `${name}...` : name;
    parsed.addArgument(new Argument(required ? `<${text}>` : `[${text}]`, row.description));
    return;
  }
  const value = row.value === undefined ? '' : ` <${row.value}>`;
  const short = row.short === undefined ? '' : `-${row.short}, `;
  const made = new CommanderOption(`${short}${optionName(key)}${value}`, describeRow(row));
  if (row.placement === 'list') {
    made.argParser((item: string, earlier: string[] | undefined) => [...(earlier ?? []), item]);
  }
  parsed.addOption(made);
}

/** The description with default, repetition and environment variable, as help and docs show it. */
export function describeRow(row: OptionRow<unknown>): string {
  const notes: string[] = [];
  if (row.placement === 'list') notes.push('may be repeated');
  if (row.defaultText !== undefined) notes.push(`default: ${row.defaultText}`);
  else if (row.fallback !== undefined && row.placement !== 'flag') {
    notes.push(`default: ${String(row.fallback)}`);
  }
  if (row.env !== undefined) notes.push(`env: ${row.env}`);
  return notes.length === 0 ? row.description : `${row.description} (${notes.join('; ')})`;
}

function helpTail(command: Command): string {
  const lines: string[] = [];
  for (const row of Object.values(command.options)) {
    if (row.placement === 'passthrough')
      lines.push('', `After --: ${row.value}: ${row.description}`);
  }
  if (command.examples.length > 0) lines.push('', 'Examples:');
  for (const example of command.examples) {
    lines.push(`  # ${example.description}`, `  memtracker ${example.command}`);
  }
  return lines.join('\n');
}

function checkedConfig(
  command: Command,
  parsed: CommanderCommand,
  rest: readonly string[] | undefined,
  env: Invocation['env'],
): Record<string, unknown> {
  const given = parsed.opts() as Record<string, unknown>;
  const arguments_ = [...parsed.processedArgs] as unknown[];
  const config: Record<string, unknown> = {};
  let takesRest = false;
  for (const [key, row] of Object.entries(command.options)) {
    let raw: unknown;
    let name = row.value ?? key;
    if (row.placement === 'passthrough') {
      takesRest = true;
      raw = rest;
    } else if (row.placement === 'positional' || row.placement === 'positionals') {
      raw = arguments_.shift();
      // commander gives an empty list for absent variadic arguments.
      if (Array.isArray(raw) && raw.length === 0) raw = undefined;
    } else {
      name = optionName(key);
      raw = given[key] ?? fromEnvironment(row, env);
    }
    const checked = row.schema.safeParse(raw);
    if (!checked.success) {
      const origin = row.env !== undefined && given[key] === undefined && raw !== undefined;
      const said = typeof raw === 'string' ? `, got "${raw}"` : '';
      throw new UserError(
        'usage',
        `${origin ? row.env : name} ${checked.error.issues[0].message}${said}; see memtracker ${command.name} --help`,
      );
    }
    config[key] = checked.data;
  }
  if (rest !== undefined && !takesRest) {
    throw new UserError('usage', `memtracker ${command.name} takes nothing after --`);
  }
  return config;
}

function fromEnvironment(row: OptionRow<unknown>, env: Invocation['env']): unknown {
  const value = row.env === undefined ? undefined : env[row.env];
  if (value === undefined || value === '') return undefined;
  return row.placement === 'list' ? [value] : value;
}
