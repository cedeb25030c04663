// A steady training-like sequence of allocations: parameters and optimizer state stay, each step keeps activations through
// forward, frees them in reverse through backward, with temporaries of many sizes in between.

/** `size` > 0 allocates that many bytes into a slot, 0 frees the slot. */
export interface AllocationEvents {
  readonly slots: Int32Array;
  readonly sizes: Float64Array;
  /** Slots in use are below this. */
  readonly slotCount: number;
}

export interface TrainingEvents {
  /** Once, before the first step. */
  readonly start: AllocationEvents;
  /** One step. It ends with as many live blocks as it began with, so it can be repeated. */
  readonly step: AllocationEvents;
}

const PERSISTENT = 600;
const LAYERS = 48;
const TENSORS_A_LAYER = 24;

/** The same events on every call. */
export function trainingEvents(): TrainingEvents {
  const random = linearCongruential(1);
  const sizeUpTo = (bits: number): number => Math.floor(2 ** (9 + random() * (bits - 9)));
  const start = new EventList(0);
  for (let i = 0; i < PERSISTENT; i++) start.alloc(sizeUpTo(25));

  const temporaries = Array.from({ length: TENSORS_A_LAYER }, () => sizeUpTo(26));
  const step = new EventList(PERSISTENT);
  const kept: { slot: number; size: number }[] = [];
  for (let layer = 0; layer < LAYERS; layer++) {
    for (const temporary of temporaries) {
      const scratch = step.alloc(temporary);
      const size = sizeUpTo(25);
      const slot = step.alloc(size);
      step.free(scratch);
      if (random() < 0.3) step.free(slot);
      else kept.push({ slot, size });
    }
  }
  for (const { slot, size } of kept.reverse()) {
    const gradient = step.alloc(size);
    step.free(slot);
    step.free(gradient);
  }
  return { start: start.events(), step: step.events() };
}

class EventList {
  readonly #slots: number[] = [];
  readonly #sizes: number[] = [];
  readonly #freeSlots: number[] = [];
  #slotCount: number;

  constructor(firstSlot: number) {
    this.#slotCount = firstSlot;
  }

  alloc(size: number): number {
    const slot = this.#freeSlots.pop() ?? this.#slotCount++;
    this.#slots.push(slot);
    this.#sizes.push(size);
    return slot;
  }

  free(slot: number): void {
    this.#slots.push(slot);
    this.#sizes.push(0);
    this.#freeSlots.push(slot);
  }

  events(): AllocationEvents {
    return {
      slots: Int32Array.from(this.#slots),
      sizes: Float64Array.from(this.#sizes),
      slotCount: this.#slotCount,
    };
  }
}

/** Numbers in [0, 1), the same for the same seed. */
function linearCongruential(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state / 0x80000000;
  };
}
