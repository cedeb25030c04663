// CUDA graph capture, as far as memory goes: which streams are captured, and, for blocks that were used on several
// of them, whether the graph proves that their last use is over.
//
// Source: PyTorch 2.14.1, c10/cuda/CUDACachingAllocator.cpp: record_free_markers, update_visited,
// free_safe_blocks_in_capture.

import type { Block } from './block.ts';
import type { PrivatePool } from './private_pool.ts';

/** A node of the graph under capture: a kernel or copy, with what it comes after. */
interface GraphNode {
  readonly after: readonly GraphNode[];
}

interface CapturedStream {
  /** The last nodes on the stream: the next one comes after all of them. */
  terminals: Set<GraphNode>;
  /** Nodes that come before everything the stream will still capture. */
  readonly passed: Set<GraphNode>;
}

export class GraphCapture {
  readonly pool: PrivatePool;
  readonly origin: number;
  readonly streams = new Map<number, CapturedStream>();

  constructor(pool: PrivatePool, origin: number) {
    this.pool = pool;
    this.origin = origin;
    this.streams.set(origin, { terminals: new Set(), passed: new Set() });
  }

  /** Something is launched on a captured stream. */
  addNode(stream: number): void {
    const captured = this.streams.get(stream);
    if (captured === undefined) return;
    captured.terminals = new Set([{ after: [...captured.terminals] }]);
  }

  /** `stream` waits for an event recorded on the captured stream `other`, and so joins the capture. */
  join(stream: number, other: number): void {
    const terminals = this.streams.get(other)?.terminals ?? [];
    const joined = this.streams.get(stream);
    if (joined === undefined) {
      this.streams.set(stream, { terminals: new Set(terminals), passed: new Set() });
    } else {
      for (const node of terminals) joined.terminals.add(node);
    }
  }

  /** The nodes after which the block is free: none when one of its streams is not captured. */
  freeMarkers(block: Block): readonly GraphNode[] {
    const markers = new Set<GraphNode>();
    for (const stream of [block.segment.stream, ...(block.streamUses ?? [])]) {
      const captured = this.streams.get(stream);
      if (captured === undefined) return [];
      for (const node of captured.terminals) markers.add(node);
    }
    return [...markers];
  }

  /** Whether everything that `stream` still captures comes after all of `markers`. */
  hasPassed(stream: number, markers: readonly GraphNode[]): boolean {
    const captured = this.streams.get(stream);
    if (captured === undefined || captured.terminals.size === 0) return false;
    const pending = [...captured.terminals];
    for (let node = pending.pop(); node !== undefined; node = pending.pop()) {
      if (captured.passed.has(node)) continue;
      captured.passed.add(node);
      pending.push(...node.after);
    }
    return markers.every((node) => captured.passed.has(node));
  }
}
