// One sidecar process: started through execa in a process group of its own, so that everything it starts ends with it.
//
//   idle ─start→ starting ─first frame→ running ─stop / close event→ stopping ─exit→ stopped
//          └──────────── exit ────────────┴──────────── exit ───────────────────────┘
//
// Ending: SIGTERM to the group, a grace time, SIGKILL to the group. After an exit by itself the group is killed as well:
// data loader workers and compile pools outlive their parent otherwise.

import { readFileSync } from 'node:fs';
import { execa } from 'execa';

export type WorkerState = 'idle' | 'starting' | 'running' | 'stopping' | 'stopped';

export interface WorkerTimeouts {
  /** From the start of the process to its first frame (ms): importing torch from a cold disk takes a while. */
  readonly start: number;
  /** From the close event to the exit (ms). */
  readonly stop: number;
  /** From SIGTERM to SIGKILL (ms). */
  readonly grace: number;
}

export const WORKER_TIMEOUTS: WorkerTimeouts = { start: 180_000, stop: 20_000, grace: 3_000 };

export interface WorkerOptions {
  /** The executable and its arguments. */
  readonly command: readonly [string, ...string[]];
  readonly cwd: string;
  readonly env: NodeJS.ProcessEnv;
  readonly timeouts?: Partial<WorkerTimeouts>;
  /** Every line that the process prints. */
  readonly onLine?: (line: string, stream: 'stdout' | 'stderr') => void;
}

export type EndCause = 'exit' | 'start_timeout' | 'stop_timeout' | 'asked';

export interface WorkerExit {
  readonly exitCode: number | null;
  readonly signal: string | null;
  /** Why it ended: by itself, or which of our clocks or callers ended it. */
  readonly cause: EndCause;
  /** The last lines of stderr, at most {@link STDERR_TAIL_LINES}. */
  readonly stderrTail: string;
  /** Largest resident set in bytes; null where /proc does not exist or the process was gone before a look. */
  readonly peakRss: number | null;
  /** The operating system could not start it: a sentence. */
  readonly spawnError: string | null;
}

function startProcess({ command: [file, ...arguments_], cwd, env }: WorkerOptions) {
  return execa(file, arguments_, {
    cwd,
    env,
    extendEnv: false,
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'pipe',
    reject: false,
    buffer: false,
    detached: true,
    cleanup: false,
  });
}
type WorkerProcess = ReturnType<typeof startProcess>;

const STDERR_TAIL_LINES = 60;
/** How often the resident set is read (ms). VmHWM is a high-water mark: only growth after the last look is missed. */
const RSS_INTERVAL = 250;

export class Worker {
  readonly #options: WorkerOptions;
  readonly #timeouts: WorkerTimeouts;
  #state: WorkerState = 'idle';
  #process: WorkerProcess | undefined;
  #cause: EndCause = 'exit';
  #timer: NodeJS.Timeout | undefined;
  #rssTimer: NodeJS.Timeout | undefined;
  #peakRss: number | null = null;
  readonly #stderr: string[] = [];
  #exit: Promise<WorkerExit> | undefined;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#timeouts = { ...WORKER_TIMEOUTS, ...options.timeouts };
  }

  get state(): WorkerState {
    return this.#state;
  }

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  /** Starts the process and returns its end. @throws Error when it was started before. */
  start(): Promise<WorkerExit> {
    if (this.#state !== 'idle') throw new Error(`the worker is ${this.#state}`);
    this.#state = 'starting';
    const subprocess = startProcess(this.#options);
    this.#process = subprocess;
    running.add(this);
    this.#timer = setTimeout(() => this.#end('start_timeout'), this.#timeouts.start);
    this.#rssTimer = setInterval(() => this.#readRss(), RSS_INTERVAL);
    this.#exit = this.#untilExit(subprocess);
    return this.#exit;
  }

  /** The first frame arrived. */
  markRunning(): void {
    if (this.#state !== 'starting') return;
    this.#state = 'running';
    clearTimeout(this.#timer);
  }

  /** The close event arrived: the process must exit by itself within the stop time-out. */
  expectExit(): void {
    if (this.#state !== 'starting' && this.#state !== 'running') return;
    this.#state = 'stopping';
    clearTimeout(this.#timer);
    this.#readRss();
    this.#timer = setTimeout(() => this.#end('stop_timeout'), this.#timeouts.stop);
  }

  /** Ends the process, kindly and then not. Resolves when it is gone. */
  async stop(): Promise<void> {
    if (this.#state === 'idle' || this.#state === 'stopped') return;
    this.#end('asked');
    await this.#exit;
  }

  #end(cause: EndCause): void {
    if (this.#state === 'stopped') return;
    if (this.#cause === 'exit') this.#cause = cause;
    this.#state = 'stopping';
    clearTimeout(this.#timer);
    this.#signalGroup('SIGTERM');
    this.#timer = setTimeout(() => this.#signalGroup('SIGKILL'), this.#timeouts.grace);
  }

  /** Kills at once, for the exit of this process. */
  killNow(): void {
    this.#signalGroup('SIGKILL');
  }

  #signalGroup(signal: NodeJS.Signals): void {
    const pid = this.pid;
    if (pid === undefined) return;
    try {
      if (process.platform === 'win32') this.#process?.kill(signal);
      else process.kill(-pid, signal);
    } catch (error) {
      // The whole group is gone already.
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
    }
  }

  async #untilExit(subprocess: WorkerProcess): Promise<WorkerExit> {
    const ended = new Promise<void>((done) => {
      subprocess.once('exit', () => done());
      subprocess.once('error', () => done());
    });
    const lines = Promise.all([
      this.#readLines(subprocess, 'stdout'),
      this.#readLines(subprocess, 'stderr'),
    ]);
    await ended;
    clearInterval(this.#rssTimer);
    clearTimeout(this.#timer);
    // Children that hold the pipes open would keep the lines from ending.
    this.#signalGroup('SIGKILL');
    const [result] = await Promise.all([subprocess, lines]);
    this.#state = 'stopped';
    running.delete(this);
    return {
      exitCode: result.exitCode ?? null,
      signal: result.signal ?? null,
      cause: this.#cause,
      stderrTail: this.#stderr.join('\n'),
      peakRss: this.#peakRss,
      spawnError: subprocess.pid === undefined ? (result.originalMessage ?? 'unknown') : null,
    };
  }

  async #readLines(subprocess: WorkerProcess, from: 'stdout' | 'stderr'): Promise<void> {
    try {
      for await (const line of subprocess.iterable({ from })) {
        this.#options.onLine?.(line, from);
        if (from === 'stdout') continue;
        this.#stderr.push(line);
        if (this.#stderr.length > STDERR_TAIL_LINES) this.#stderr.shift();
      }
    } catch {
      // The iterable rejects when the process ends badly; how it ended is in the result.
    }
  }

  #readRss(): void {
    try {
      const status = readFileSync(`/proc/${this.pid}/status`, 'utf8');
      const match = /^VmHWM:\s+(\d+) kB$/m.exec(status);
      if (match !== null) this.#peakRss = Number(match[1]) * 1024;
    } catch {
      // No /proc here, or the process has just ended.
    }
  }
}

const running = new Set<Worker>();

// Whatever ends this process takes its workers along. (A SIGKILL of ours is seen by the sidecar, which watches its parent.)
process.on('exit', () => {
  for (const worker of running) worker.killNow();
});
