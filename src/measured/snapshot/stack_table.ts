// Frames and call stacks of a snapshot, each kept once.
//
// A snapshot repeats a stack of some seventy frames for every trace entry. Here a stack is a node of the calling-context tree:
// one frame called from a parent node. Stacks that share their outer frames share the nodes.

export interface Frame {
  readonly filename: string;
  readonly line: number;
  readonly name: string;
  /** The whole frame as JSON when it has more fields (torch 2.10 and later: `fx_node_name`, … of compiled graphs). */
  readonly unknown?: string;
}

/** Node 0 is the empty stack. */
export class StackTable {
  readonly #frames: Frame[] = [];
  readonly #frameIds = new Map<string, number>();
  // Plain arrays, not columns: a lookup of every frame of every entry goes through them.
  #parent = new Uint32Array(1 << 12);
  #frame = new Uint32Array(1 << 12);
  #nodes = 1;
  #slots = new Uint32Array(1 << 13);

  /** Number of nodes, the empty one included. */
  get nodes(): number {
    return this.#nodes;
  }

  get frames(): readonly Frame[] {
    return this.#frames;
  }

  frameId(frame: Frame): number {
    const key = `${frame.line}\0${frame.name}\0${frame.filename}\0${frame.unknown ?? ''}`;
    let id = this.#frameIds.get(key);
    if (id === undefined) {
      id = this.#frames.length;
      this.#frames.push(frame);
      this.#frameIds.set(key, id);
    }
    return id;
  }

  /** The node of `frame` called from `parent`. */
  node(parent: number, frame: number): number {
    const mask = this.#slots.length - 1;
    let slot = hash(parent, frame) & mask;
    for (;;) {
      const node = this.#slots[slot];
      if (node === 0) break;
      if (this.#parent[node] === parent && this.#frame[node] === frame) return node;
      slot = (slot + 1) & mask;
    }
    const node = this.#nodes++;
    if (node === this.#parent.length) this.#grow();
    this.#parent[node] = parent;
    this.#frame[node] = frame;
    this.#insert(node);
    return node;
  }

  parentOf(node: number): number {
    return this.#parent[node];
  }

  frameOf(node: number): Frame {
    return this.#frames[this.#frame[node]];
  }

  /** Frames of a stack, innermost first (as a snapshot lists them). */
  framesOf(node: number): Frame[] {
    const frames: Frame[] = [];
    for (let at = node; at !== 0; at = this.parentOf(at)) frames.push(this.frameOf(at));
    return frames;
  }

  #insert(node: number): void {
    const mask = this.#slots.length - 1;
    let slot = hash(this.#parent[node], this.#frame[node]) & mask;
    while (this.#slots[slot] !== 0) slot = (slot + 1) & mask;
    this.#slots[slot] = node;
  }

  /** Doubles the capacity; the hash table stays at most half full. */
  #grow(): void {
    const { length } = this.#parent;
    const parent = new Uint32Array(length * 2);
    const frame = new Uint32Array(length * 2);
    parent.set(this.#parent);
    frame.set(this.#frame);
    this.#parent = parent;
    this.#frame = frame;
    this.#slots = new Uint32Array(length * 4);
    for (let node = 1; node < length; node++) this.#insert(node);
  }
}

function hash(parent: number, frame: number): number {
  let h = Math.imul(parent, 0x9e3779b1) ^ Math.imul(frame, 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 15), 0x2c1b3c6d);
  return (h ^ (h >>> 13)) >>> 0;
}
