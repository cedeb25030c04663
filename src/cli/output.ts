// Where a command writes. The product (tables, JSON, paths) goes to stdout and nothing else does; progress, notes and
// warnings go to stderr. Colours and live lines only on a terminal, and never when NO_COLOR is set (no-color.org).

import { createLogUpdate } from 'log-update';
import picocolors from 'picocolors';

export type Colors = ReturnType<typeof picocolors.createColors>;

export interface OutputOptions {
  readonly stdout: NodeJS.WriteStream;
  readonly stderr: NodeJS.WriteStream;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** No notes and no progress; warnings and errors stay. */
  readonly quiet: boolean;
}

function wantsColor(stream: NodeJS.WriteStream, env: OutputOptions['env']): boolean {
  if (env.NO_COLOR !== undefined && env.NO_COLOR !== '') return false;
  if (env.FORCE_COLOR !== undefined && env.FORCE_COLOR !== '' && env.FORCE_COLOR !== '0')
    return true;
  return stream.isTTY === true && env.TERM !== 'dumb';
}

/** How often a live line is redrawn, and how often plain progress is repeated (ms). */
const LIVE_INTERVAL = 100;
const PLAIN_INTERVAL = 5_000;

export class Output {
  readonly quiet: boolean;
  /** Colours for what goes to stdout; functions that return their argument when there are none. */
  readonly colors: Colors;
  /** Colours for what goes to stderr. */
  readonly logColors: Colors;
  /** Columns of the terminal; 100 where there is none. */
  readonly width: number;

  readonly #stdout: NodeJS.WriteStream;
  readonly #stderr: NodeJS.WriteStream;
  readonly #live: ReturnType<typeof createLogUpdate> | undefined;
  #drawnAt = 0;
  #liveText = '';
  #lastPlain = '';

  constructor(options: OutputOptions) {
    this.#stdout = options.stdout;
    this.#stderr = options.stderr;
    this.quiet = options.quiet;
    this.colors = picocolors.createColors(wantsColor(options.stdout, options.env));
    this.logColors = picocolors.createColors(wantsColor(options.stderr, options.env));
    this.width = options.stdout.isTTY ? options.stdout.columns : 100;
    const live = options.stderr.isTTY === true && options.env.TERM !== 'dumb' && !options.quiet;
    this.#live = live ? createLogUpdate(options.stderr, { showCursor: true }) : undefined;
  }

  /** Part of the product. A final newline is added when there is none. */
  product(text: string): void {
    this.#stdout.write(text.endsWith('\n') ? text : `${text}\n`);
  }

  /** The whole product as JSON. */
  json(value: unknown): void {
    this.product(JSON.stringify(value, undefined, 2));
  }

  /** For people, on stderr; dropped by `--quiet`. */
  note(text: string): void {
    if (!this.quiet) this.#line(text);
  }

  /** What another program printed, as it is. */
  log(text: string): void {
    this.#line(text);
  }

  warn(text: string): void {
    this.#line(`${this.logColors.yellow('warning:')} ${text}`);
  }

  error(text: string): void {
    this.#line(`${this.logColors.red('error:')} ${text}`);
  }

  /**
   * Says where a long action is: redrawn in place on a terminal, a plain line every few seconds elsewhere.
   * `lines` may hold several lines (one a worker).
   */
  progress(lines: string, options: { force?: boolean } = {}): void {
    if (this.quiet) return;
    const now = Date.now();
    if (this.#live !== undefined) {
      this.#liveText = lines;
      if (!options.force && now - this.#drawnAt < LIVE_INTERVAL) return;
      this.#drawnAt = now;
      this.#live(lines);
      return;
    }
    if ((!options.force && now - this.#drawnAt < PLAIN_INTERVAL) || lines === this.#lastPlain)
      return;
    this.#drawnAt = now;
    this.#lastPlain = lines;
    this.#stderr.write(`${lines}\n`);
  }

  /** Removes the live lines. Call it before the product is written and when the action is over. */
  endProgress(): void {
    this.#live?.clear();
    this.#live?.done();
    this.#liveText = '';
    this.#drawnAt = 0;
  }

  #line(text: string): void {
    this.#live?.clear();
    this.#stderr.write(`${text}\n`);
    if (this.#liveText !== '') this.#live?.(this.#liveText);
  }
}
