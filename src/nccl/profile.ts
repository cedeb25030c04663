// Communicators by hand: a program without a trace registers communicators with a profile, begins and completes
// collectives, and destroys them. The bytes go to an account, usually a device's.
//
// Rules. Nothing is taken before the first use, unless the profile says so; a repeated collective finds its pools. Temporaries
// live until their collective completes. The payload is tensors of the program and is never counted here. A size of zero
// means that the item is omitted, not that it was measured as zero. A communicator with pending collectives cannot be
// destroyed. When an allocation fails half-way, those before it are given back.

import { type Bytes, bytes, KiB, MiB } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';
import type { Evidence } from '../base/evidence.ts';

/** Where bytes outside the caching allocator are taken from. */
export interface MemoryAccount {
  /** False when they are not free. */
  tryTake(bytes: number, name: string): boolean;
  give(bytes: number, name: string): void;
}

export interface CommunicatorProfile {
  /** Taken when the communicator is registered. 0: omitted. */
  readonly atInit: Bytes;
  /** Taken at the first collective, kept until the communicator is destroyed. 0: omitted. */
  readonly atFirstUse: Bytes;
  readonly evidence: Evidence;
  readonly provenance: string;
  /** What the figures leave out. */
  readonly omits: string;
}

/** One channel's buffers towards a pair of P2P neighbours: 2 MiB to send, 10 MiB to receive. */
const P2P_BYTES_PER_CHANNEL = 12 * MiB;

/**
 * Ring buffers over NVLink or PCIe: 12 MiB a channel at the first use (NCCL v2.30.7-1 src/transport/p2p.cc, p2pSendSetup and
 * p2pRecvSetup, with the default NCCL_BUFFSIZE). Structures and NVLS are omitted.
 */
export function p2pProfile(channels: number): CommunicatorProfile {
  return {
    atInit: bytes(0),
    atFirstUse: bytes(channels * P2P_BYTES_PER_CHANNEL),
    evidence: 'source',
    provenance: `NCCL v2.30.7-1 src/transport/p2p.cc: ${channels} channels x (2 + 10) MiB`,
    omits: 'channel structures, NVLS, tree and point-to-point connections, kernel memory',
  };
}

/**
 * The shared pools of sends and receives over the network, one for each direction: channels x 16 steps x 128 KiB (NCCL
 * v2.30.7-1 src/transport/net.cc, sharedNetBuffersInit).
 */
export function sharedNetProfile(channels: number, chunk: number = 128 * KiB): CommunicatorProfile {
  return {
    atInit: bytes(0),
    atFirstUse: bytes(2 * channels * 16 * chunk),
    evidence: 'source',
    provenance: `NCCL v2.30.7-1 src/transport/net.cc: 2 directions x ${channels} channels x 16 x ${chunk} B`,
    omits:
      'channel structures, NVLS, ring and tree connections, pools of other local ranks (PXN), kernel memory',
  };
}

/**
 * Figures measured on a GPU. Provenance says on what: GPU, NCCL version, ranks.
 * @throws UserError `bad-profile` without provenance.
 */
export function calibratedProfile(figures: {
  atInit?: number;
  atFirstUse?: number;
  provenance: string;
  omits?: string;
}): CommunicatorProfile {
  if (figures.provenance.trim() === '') {
    throw new UserError(
      'bad-profile',
      'a calibrated profile needs its provenance: GPU, NCCL version, ranks',
    );
  }
  return {
    atInit: bytes(figures.atInit ?? 0),
    atFirstUse: bytes(figures.atFirstUse ?? 0),
    evidence: 'calibrated',
    provenance: figures.provenance,
    omits: figures.omits ?? 'what the measurement did not cover',
  };
}

/** A collective that was begun. */
export interface PendingCollective {
  readonly communicator: string;
  readonly serial: number;
}

interface Registered {
  readonly profile: CommunicatorProfile;
  used: boolean;
  held: number;
  readonly pending: Map<number, number>;
}

/** NCCL memory that did not fit. Nothing of the failed call stays taken. */
export class NcclOutOfMemory extends Error {
  readonly requestedBytes: number;

  constructor(communicator: string, requestedBytes: number) {
    super(
      `NCCL out of memory: communicator "${communicator}" needs ${requestedBytes} bytes that are not free`,
    );
    this.name = 'NcclOutOfMemory';
    this.requestedBytes = requestedBytes;
  }
}

export class CommunicatorLedger {
  readonly #account: MemoryAccount;
  readonly #communicators = new Map<string, Registered>();
  #serial = 0;

  constructor(account: MemoryAccount) {
    this.#account = account;
  }

  /**
   * @throws UserError `communicator-exists` when the name is in use.
   * @throws NcclOutOfMemory when the memory at init is not free.
   */
  register(name: string, profile: CommunicatorProfile): void {
    if (this.#communicators.has(name)) {
      throw new UserError('communicator-exists', `communicator "${name}" is registered already`);
    }
    this.#takeAll(name, [profile.atInit]);
    this.#communicators.set(name, {
      profile,
      used: false,
      held: profile.atInit,
      pending: new Map(),
    });
  }

  /**
   * Begins a collective. `temporaries`: bytes that it holds until it completes, each an allocation of its own.
   * @throws NcclOutOfMemory when something is not free; nothing is taken then.
   */
  begin(name: string, temporaries: readonly number[] = []): PendingCollective {
    const communicator = this.#find(name);
    const first = communicator.used ? 0 : communicator.profile.atFirstUse;
    this.#takeAll(name, [first, ...temporaries]);
    communicator.used = true;
    communicator.held += first;
    this.#serial += 1;
    communicator.pending.set(
      this.#serial,
      temporaries.reduce((sum, size) => sum + size, 0),
    );
    return { communicator: name, serial: this.#serial };
  }

  /** Completing a collective twice, or one of a communicator that is gone, does nothing. */
  complete(collective: PendingCollective): void {
    const pending = this.#communicators.get(collective.communicator)?.pending;
    const temporaries = pending?.get(collective.serial);
    if (pending === undefined || temporaries === undefined) return;
    pending.delete(collective.serial);
    if (temporaries > 0) this.#account.give(temporaries, collective.communicator);
  }

  /** @throws UserError `communicator-pending` while collectives are pending, `unknown-communicator` for an unknown name. */
  destroy(name: string): void {
    const { pending, held } = this.#find(name);
    if (pending.size > 0) {
      throw new UserError(
        'communicator-pending',
        `communicator "${name}" has ${pending.size} pending collectives; complete them before it is destroyed`,
      );
    }
    this.#communicators.delete(name);
    if (held > 0) this.#account.give(held, name);
  }

  /** Communicators whose profile leaves every figure out: their memory is unknown, not zero. */
  omitted(): string[] {
    return [...this.#communicators]
      .filter(([, { profile }]) => profile.atInit === 0 && profile.atFirstUse === 0)
      .map(([name]) => name);
  }

  #find(name: string): Registered {
    const communicator = this.#communicators.get(name);
    if (communicator) return communicator;
    throw new UserError('unknown-communicator', `communicator "${name}" is not registered`);
  }

  #takeAll(name: string, sizes: readonly number[]): void {
    let taken = 0;
    for (const size of sizes) {
      if (size === 0) continue;
      if (!this.#account.tryTake(size, name)) {
        if (taken > 0) this.#account.give(taken, name);
        throw new NcclOutOfMemory(name, size);
      }
      taken += size;
    }
  }
}
