// pythonia, one interpreter a bridge. The package keeps its interpreter in module state, starts it when it is loaded, and reads its settings from
// the environment at that moment; here every bridge loads a fresh copy, so that bridges can be opened and closed any number of times.
//
// What is changed from the outside, and why:
// - a Python exception becomes a PythonError that carries Python's own traceback (pythonia would print and reformat it, and needs
//   the JavaScript source file of the caller for that);
// - every object that Python hands out is noted, so that a scope can let go of it at a stated moment: a tensor's lifetime must not
//   depend on when V8 collects garbage;
// - a call that hangs ends the interpreter: nothing sensible can follow it.

import type { ChildProcess } from 'node:child_process';
import { createRequire } from 'node:module';

/** A Python object or module. Any attribute or call is a round trip: `await`. Keyword arguments: `call$(…, {name: value})`. */
// biome-ignore lint/suspicious/noExplicitAny: Python objects have no static type on this side.
export type PyObject = any;

/** A Python exception, with the traceback as Python prints it. */
export class PythonError extends Error {
  readonly traceback: string;

  constructor(traceback: string) {
    const lines = traceback.trimEnd().split('\n');
    super(lines.at(-1) ?? 'Python failed');
    this.name = 'PythonError';
    this.traceback = traceback;
  }
}

/** A call did not return in time, or the interpreter is gone. */
export class BridgeClosedError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'BridgeClosedError';
  }
}

interface Com {
  proc: ChildProcess | null;
  write(request: object): void;
  recieve(message: { r?: number; key?: string }): void;
}

interface InnerBridge {
  call(...args: unknown[]): Promise<unknown>;
  get(...args: unknown[]): Promise<unknown>;
  value(...args: unknown[]): Promise<unknown>;
  len(...args: unknown[]): Promise<unknown>;
  inspect(...args: unknown[]): Promise<unknown>;
  queueForCollection(ffid: number, value: object): void;
  end(): void;
}

interface PythoniaModule {
  python: ((module: string) => PyObject) & { setFastMode(on: boolean): void };
  com: Com;
}

export interface InterpreterOptions {
  readonly python: string;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** A call that takes longer ends the interpreter (ms). */
  readonly callTimeout: number;
}

const require = createRequire(import.meta.url);
const STOP_GRACE = 2_000;

/** One Python process behind pythonia. */
export class Interpreter {
  readonly process: ChildProcess;
  readonly #module: PythoniaModule;
  readonly #bridge: InnerBridge;
  readonly #scopes: Set<number>[] = [];
  readonly #exited: Promise<void>;
  #gone: string | undefined;

  private constructor(module: PythoniaModule, bridge: InnerBridge) {
    const child = module.com.proc;
    if (child === null) throw new Error('pythonia started no process');
    this.process = child;
    this.#module = module;
    this.#bridge = bridge;
    this.#exited = new Promise((done) => {
      child.once('exit', (code, signal) => {
        this.#gone ??= `the Python process ended by itself (${signal ?? `status ${code}`})`;
        done();
      });
    });
    child.once('error', (error) => {
      this.#gone ??= `Python could not be started: ${error.message}`;
    });
    open.add(this);
  }

  static start(options: InterpreterOptions): Interpreter {
    const before = { ...process.env };
    // Read by pythonia when it is loaded and by the process that it spawns.
    Object.assign(process.env, options.env, {
      PYTHON_BIN: options.python,
      REQ_TIMEOUT: String(options.callTimeout),
    });
    try {
      const root = require.resolve('pythonia').replace(/index\.js$/, '');
      for (const path of Object.keys(require.cache)) {
        if (path.startsWith(root)) delete require.cache[path];
      }
      const errors = require(`${root}errors.js`) as Record<string, unknown>;
      errors.getErrorMessage = (_call: string, _javascript: string, traceback: string) => traceback;
      const module = require('pythonia') as PythoniaModule;
      const bridge = (globalThis as unknown as { __pythonBridge: InnerBridge }).__pythonBridge;
      const interpreter = new Interpreter(module, bridge);
      interpreter.#adopt(options.callTimeout);
      // Without this every result comes with its repr(), which for a fake tensor is slow and can fail.
      module.python.setFastMode(true);
      return interpreter;
    } finally {
      for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
      Object.assign(process.env, before);
    }
  }

  /** Imports a Python module. */
  import(module: string): Promise<PyObject> {
    this.assertAlive();
    return this.#module.python(module);
  }

  /** @throws BridgeClosedError when there is nobody to talk to. */
  assertAlive(): void {
    if (this.#gone !== undefined) throw new BridgeClosedError(this.#gone);
  }

  /** Lets go of objects: Python drops its references before this resolves. */
  async release(...objects: readonly PyObject[]): Promise<void> {
    await this.#free(objects.map((object) => object.ffid as number));
  }

  /** Runs `body` and then lets go of every object that Python handed out inside, but for those passed to `keep` and the result. */
  async scope<T>(body: (keep: <O>(object: O) => O) => Promise<T>): Promise<T> {
    const made = new Set<number>();
    const kept = new Set<number>();
    const keep = <O>(object: O): O => {
      const ffid = (object as { ffid?: number } | undefined)?.ffid;
      if (ffid !== undefined) kept.add(ffid);
      return object;
    };
    this.#scopes.push(made);
    try {
      return keep(await body(keep));
    } finally {
      this.#scopes.splice(this.#scopes.indexOf(made), 1);
      const outer = this.#scopes.at(-1);
      for (const ffid of kept) outer?.add(ffid);
      if (this.#gone === undefined) await this.#free([...made].filter((ffid) => !kept.has(ffid)));
    }
  }

  /** Ends the process: SIGTERM, a grace time, SIGKILL. */
  async stop(reason = 'the bridge is closed'): Promise<void> {
    this.#gone ??= reason;
    this.#bridge.end();
    open.delete(this);
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    this.process.kill('SIGTERM');
    const kill = setTimeout(() => this.process.kill('SIGKILL'), STOP_GRACE);
    await this.#exited;
    clearTimeout(kill);
  }

  killNow(): void {
    this.process.kill('SIGKILL');
  }

  async #free(ffids: readonly number[]): Promise<void> {
    if (ffids.length === 0) return;
    this.assertAlive();
    this.#module.com.write({ r: 0, action: 'free', ffid: '', key: '', val: ffids });
    // Requests are answered in order: when this one is, the objects are gone.
    await this.#bridge.len(0, []);
  }

  #adopt(callTimeout: number): void {
    for (const name of ['call', 'get', 'value', 'len', 'inspect'] as const) {
      const original = this.#bridge[name].bind(this.#bridge);
      this.#bridge[name] = async (...args: unknown[]) => {
        this.assertAlive();
        try {
          return await this.#untilGone(original(...args));
        } catch (error) {
          throw await this.#translated(error as Error, callTimeout);
        }
      };
    }
    const queue = this.#bridge.queueForCollection.bind(this.#bridge);
    this.#bridge.queueForCollection = (ffid, value) => {
      this.#scopes.at(-1)?.add(ffid);
      queue(ffid, value);
    };
  }

  /** A call must not wait for its time-out when the process has died under it. */
  async #untilGone<T>(call: Promise<T>): Promise<T> {
    const gone = this.#exited.then(() => {
      throw new BridgeClosedError(this.#gone ?? 'the Python process ended');
    });
    return Promise.race([call, gone]);
  }

  async #translated(error: Error, callTimeout: number): Promise<Error> {
    if (error instanceof BridgeClosedError) return error;
    if (error.constructor.name === 'BridgeException') {
      const reason = `a call did not return within ${callTimeout / 1000} s; Python was ended`;
      await this.stop(reason);
      return new BridgeClosedError(reason);
    }
    return error.constructor.name === 'PythonException'
      ? new PythonError(error.stack ?? '')
      : error;
  }
}

const open = new Set<Interpreter>();

process.on('exit', () => {
  for (const interpreter of open) interpreter.killNow();
});
