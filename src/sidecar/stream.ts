// The event stream of one run: a ZeroMQ ROUTER socket that only this user can reach, and the checks that make a stream whole:
// the run's nonce, the protocol version, sequence numbers without gaps, and the close event, which is answered with one empty
// frame: until then the worker keeps its end of the connection (python/memtracker_sidecar/emitter.py says why).
//
// Back-pressure: a frame is asked for only when the one before was written. libzmq then holds RECEIVE_FRAMES frames, the
// kernel a socket buffer, and after that the sender blocks. Nothing is dropped on either side.

import { randomBytes } from 'node:crypto';
import { curveKeyPair, Router } from 'zeromq';
import { UserError } from '../base/errors.ts';
import { type Batch, decodeBatch } from '../protocol/codec.ts';
import { type EventTuple, eventCode } from '../protocol/events.ts';
import { PrivateFolder } from './private_folder.ts';

/** Frames that wait in libzmq for this process. */
const RECEIVE_FRAMES = 64;

/** How often the loop looks up from an idle socket (ms). */
const IDLE = 100;

/** An idle socket of a worker that has ended is drained after so many looks. */
const DRAINED_LOOKS = 3;

/** Faults of one kind that are worth a sentence each. */
const MAX_FAULTS = 20;

/** Takes what arrives, in order. */
export interface FrameSink {
  /** Called with a frame that passed every check, and what it holds; the next frame waits for the promise. */
  frame(raw: Uint8Array, batch: Batch): Promise<void>;
}

export interface StreamSummary {
  readonly batches: number;
  readonly events: number;
  /** The close event came. */
  readonly closed: boolean;
  /** `status` of the close event. */
  readonly status: string | null;
  /** Sentences about what is missing or damaged; empty for a whole stream. */
  readonly faults: readonly string[];
}

export interface CurveKeys {
  readonly server_public: string;
  readonly public: string;
  readonly secret: string;
}

export interface StreamOptions {
  readonly env?: NodeJS.ProcessEnv;
  /** `ipc` where the platform and the length of the path allow it, else loopback TCP with CURVE keys. */
  readonly transport?: 'ipc' | 'tcp';
}

const CLOSE = eventCode('close');

/** Tells the worker that everything up to its close event was read. */
const ACKNOWLEDGEMENT = new Uint8Array();

export class EventStream {
  /** What the worker connects to. */
  readonly endpoint: string;
  /** Keys for the worker, when the endpoint is TCP. */
  readonly curve: CurveKeys | null;
  /** Nonce of the run: a frame with another is refused. */
  readonly run: string;
  /** Removed by {@link close}; the worker's specification may be put there. */
  readonly folder: PrivateFolder;

  readonly #socket: Router;
  #senderGone = false;
  #closed = false;

  private constructor(
    socket: Router,
    endpoint: string,
    curve: CurveKeys | null,
    folder: PrivateFolder,
  ) {
    this.#socket = socket;
    this.endpoint = endpoint;
    this.curve = curve;
    this.folder = folder;
    this.run = randomBytes(16).toString('hex');
  }

  /** @throws UserError when no socket can be made. */
  static async open(options: StreamOptions = {}): Promise<EventStream> {
    const folder = await PrivateFolder.make(options.env ?? process.env);
    const socket = new Router({
      receiveHighWaterMark: RECEIVE_FRAMES,
      receiveTimeout: IDLE,
      linger: 0,
    });
    const ipc =
      options.transport !== 'tcp' && process.platform !== 'win32' && folder.socket !== null;
    try {
      if (ipc) {
        const endpoint = `ipc://${folder.socket}`;
        await socket.bind(endpoint);
        return new EventStream(socket, endpoint, null, folder);
      }
      const server = curveKeyPair();
      const client = curveKeyPair();
      socket.curveServer = true;
      socket.curveSecretKey = server.secretKey;
      await socket.bind('tcp://127.0.0.1:*');
      const endpoint = socket.lastEndpoint;
      if (endpoint === null) throw new Error('the socket has no address');
      const curve = {
        server_public: server.publicKey,
        public: client.publicKey,
        secret: client.secretKey,
      };
      return new EventStream(socket, endpoint, curve, folder);
    } catch (error) {
      socket.close();
      await folder.remove();
      throw new UserError(
        'STREAM',
        `cannot open a socket in ${folder.path} (${(error as Error).message}); set TMPDIR to a local folder`,
        { cause: error },
      );
    }
  }

  /** To be called when the worker process has ended: what it sent is still received, then the stream ends. */
  senderGone(): void {
    this.#senderGone = true;
  }

  /**
   * Hands every frame to the sink until the close event, or until the sender is gone and the socket is drained.
   * The close event is answered once the sink has it. Rejects only with what the sink throws.
   */
  async receive(sink: FrameSink): Promise<StreamSummary> {
    const faults = new Faults();
    let batches = 0;
    let events = 0;
    let expected = 0;
    let closing: EventTuple | undefined;
    let idleLooks = 0;
    while (closing === undefined && !this.#closed) {
      const message = await this.#next();
      if (message === undefined) {
        if (this.#senderGone && ++idleLooks >= DRAINED_LOOKS) break;
        continue;
      }
      const [sender, raw] = message;
      idleLooks = 0;
      const decoded = decodeBatch(raw);
      if (!decoded.ok) {
        faults.add(`a frame of the stream was refused: ${decoded.error}`);
        continue;
      }
      const batch = decoded.value;
      if (batch.run !== this.run) {
        faults.add('a frame of another run was refused');
        continue;
      }
      if (batch.sequence !== expected) {
        faults.add(gapSentence(expected, batch.sequence));
        if (batch.sequence < expected) continue;
      }
      expected = batch.sequence + 1;
      batches++;
      events += batch.events.length;
      const last = batch.events.at(-1);
      if (last?.[0] === CLOSE) closing = last;
      await sink.frame(raw, batch);
      if (closing !== undefined && !this.#closed)
        await this.#socket.send([sender, ACKNOWLEDGEMENT]);
    }
    if (closing === undefined) {
      faults.add('the worker ended without closing its stream; what arrived is kept');
    } else if (closing[2] !== events) {
      faults.add(`the worker sent ${String(closing[2])} events, ${events} arrived`);
    }
    return {
      batches,
      events,
      closed: closing !== undefined,
      status: closing === undefined ? null : String(closing[1]),
      faults: faults.sentences(),
    };
  }

  /** Closes the socket and removes the folder. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.#socket.close();
    await this.folder.remove();
  }

  /** Who sent the next frame, and the frame; undefined when none came within {@link IDLE}. */
  async #next(): Promise<readonly [sender: Uint8Array, frame: Uint8Array] | undefined> {
    try {
      const [sender, frame] = await this.#socket.receive();
      return [sender as Uint8Array, frame as Uint8Array];
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EAGAIN' || this.#closed) return undefined;
      throw error;
    }
  }
}

function gapSentence(expected: number, got: number): string {
  if (got < expected) return `batch ${got} came twice or out of order and was left out`;
  const missing = got - expected === 1 ? `batch ${expected}` : `batches ${expected} to ${got - 1}`;
  return `${missing} of the stream never arrived`;
}

class Faults {
  readonly #sentences: string[] = [];
  #count = 0;

  add(sentence: string): void {
    this.#count++;
    if (this.#sentences.length < MAX_FAULTS) this.#sentences.push(sentence);
  }

  sentences(): readonly string[] {
    const rest = this.#count - this.#sentences.length;
    return rest === 0 ? this.#sentences : [...this.#sentences, `and ${rest} more faults`];
  }
}
