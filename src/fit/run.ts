// Judges variations: finds which traces they need, has them made, replays them and judges. Replays cost milliseconds and
// are done here; traces cost seconds and are the executor's.

import { parseCapacity } from '../device/gpus.ts';
import { readTrace } from '../trace/reader.ts';
import type { Trace } from '../trace/trace.ts';
import { evidenceOf } from './evidence.ts';
import {
  type Executor,
  PROGRESS,
  type TraceRequest,
  type TraceResult,
  type UnitProgress,
} from './executor.ts';
import { chosenRoles, layoutOf, type Role } from './roles.ts';
import { marginBytes } from './spec.ts';
import type { Target } from './target.ts';
import type { TraceCache } from './trace_cache.ts';
import { labelOf, type Variation } from './variation.ts';
import { type Judgement, judge, type RoleEvidence } from './verdict.ts';
import { type UnitKeys, unitOf } from './work_unit.ts';

export interface FitOutcome {
  readonly variation: Variation;
  readonly label: string;
  readonly capacity: number;
  readonly margin: number;
  readonly judgement: Judgement;
  readonly roles: readonly RoleEvidence[];
}

export interface FitContext {
  readonly executor: Executor;
  readonly cache: TraceCache;
  readonly keys: UnitKeys;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly signal: AbortSignal;
  /** The device of a variation, and what its model says it leaves out. */
  readonly target: (variation: Variation) => Promise<Target>;
  readonly onProgress: (request: TraceRequest, progress: UnitProgress) => void;
  /** A sentence that a person should see now. */
  readonly onWarning: (sentence: string) => void;
}

/** Read traces that are kept in memory: the replays of one variation's neighbours use the same few. */
const TRACES_IN_MEMORY = 8;

export class FitRun {
  readonly #context: FitContext;
  readonly #results = new Map<string, TraceResult>();
  readonly #traces = new Map<string, Promise<Trace | undefined>>();
  /** Requests that the cache answered and whose traces were not read yet. */
  readonly #cached = new Map<string, TraceRequest>();
  /** Traces that were made (not found in the cache) by this run. */
  traced = 0;

  constructor(context: FitContext) {
    this.#context = context;
  }

  /** One outcome a variation, in order. Every trace that several variations need is made once. */
  async judge(variations: readonly Variation[]): Promise<FitOutcome[]> {
    // Rank 0 of every variation first: its trace says how ranks are laid out, and rank 0 stands for a role in every layout.
    const scouts = variations.map((variation) => ({
      variation,
      ranks:
        variation.ranks === 'auto'
          ? [0]
          : this.#given(variation).map((role) => role.representative),
    }));
    await this.#trace(scouts);
    const roles = await Promise.all(variations.map((variation) => this.#roles(variation)));
    await this.#trace(
      variations.map((variation, i) => ({
        variation,
        ranks: roles[i].map((role) => role.representative),
      })),
    );
    const outcomes: FitOutcome[] = [];
    for (let i = 0; i < variations.length; i++)
      outcomes.push(await this.#judge(variations[i], roles[i]));
    return outcomes;
  }

  #given(variation: Variation): Role[] {
    return chosenRoles(variation.ranks, undefined, variation.world.ranks);
  }

  async #roles(variation: Variation): Promise<Role[]> {
    if (variation.ranks !== 'auto') return this.#given(variation);
    const trace = await this.#read(await this.#key(variation, 0));
    const layout = layoutOf(trace?.run.get('layout'), variation.world.ranks);
    // Without a stated layout, one rank stands for itself and the verdict says so.
    if (layout === undefined) {
      return [{ label: 'rank 0', representative: 0, ranks: variation.world.ranks, stage: null }];
    }
    return chosenRoles('auto', layout, variation.world.ranks);
  }

  #key(variation: Variation, rank: number): Promise<string> {
    return this.#context.keys.key(unitOf(variation, rank), this.#context.env);
  }

  async #trace(
    wanted: readonly { variation: Variation; ranks: readonly number[] }[],
  ): Promise<void> {
    const { cache, executor, onProgress, signal } = this.#context;
    const requests = new Map<string, TraceRequest>();
    for (const { variation, ranks } of wanted) {
      for (const rank of ranks) {
        const key = await this.#key(variation, rank);
        if (this.#results.has(key) || requests.has(key)) continue;
        const label = `${labelOf(variation)}, rank ${rank}`;
        const request = { key, unit: unitOf(variation, rank), label };
        const cached = await cache.get(key);
        if (cached === undefined) {
          requests.set(key, request);
        } else {
          this.#results.set(key, { key, path: cached, failure: null });
          this.#cached.set(key, request);
          onProgress(request, PROGRESS.cached);
        }
      }
    }
    const list = [...requests.values()];
    this.traced += list.length;
    for (const result of await executor.run(list, { onProgress, signal })) {
      this.#results.set(result.key, result);
    }
  }

  async #read(key: string): Promise<Trace | undefined> {
    const path = this.#results.get(key)?.path;
    if (path === undefined || path === null) return undefined;
    let trace = this.#traces.get(key);
    if (trace === undefined) {
      trace = this.#readOrRemake(key, path);
      this.#traces.set(key, trace);
      const oldest = this.#traces.keys().next().value;
      if (this.#traces.size > TRACES_IN_MEMORY && oldest !== undefined) this.#traces.delete(oldest);
    }
    return trace;
  }

  /** A kept trace that does not read to its end counts as missing: it is made again, once. */
  async #readOrRemake(key: string, path: string): Promise<Trace | undefined> {
    const kept = this.#cached.get(key);
    this.#cached.delete(key);
    let fault: string;
    try {
      const trace = await readTrace(path);
      if (kept === undefined || trace.integrity.complete) return trace;
      fault = trace.integrity.faults.join('; ');
    } catch (error) {
      fault = (error as Error).message;
    }
    const { cache, executor, onProgress, onWarning, signal } = this.#context;
    if (kept === undefined) {
      this.#results.set(key, { key, path: null, failure: `the trace does not read: ${fault}` });
      return undefined;
    }
    onWarning(`the kept trace of ${kept.label} is damaged (${fault}); it is traced again`);
    await cache.drop(key);
    this.traced++;
    const [result] = await executor.run([kept], { onProgress, signal });
    this.#results.set(key, result);
    return result.path === null ? undefined : this.#readOrRemake(key, result.path);
  }

  async #judge(variation: Variation, roles: readonly Role[]): Promise<FitOutcome> {
    const { usableBytes: capacity } = parseCapacity(variation.gpu);
    const margin = marginBytes(variation.margin, capacity);
    const { device, missing } = await this.#context.target(variation);
    const evidence: RoleEvidence[] = [];
    const failed: string[] = [];
    for (const role of roles) {
      const key = await this.#key(variation, role.representative);
      const trace = await this.#read(key);
      const result = this.#results.get(key);
      if (result?.failure) failed.push(`rank ${role.representative}: ${result.failure}`);
      if (trace === undefined || result?.path === undefined || result.path === null) continue;
      evidence.push(
        evidenceOf({
          role,
          path: result.path,
          trace,
          capacity,
          margin,
          device,
          missing: missing(trace),
          firstStepOnly: variation.scenario === 'first_step',
        }),
      );
    }
    if (
      variation.ranks === 'auto' &&
      roles.length === 1 &&
      roles[0].label === 'rank 0' &&
      variation.world.ranks > 1
    ) {
      failed.push(
        'the adapter does not say how ranks differ: only rank 0 was looked at; name others with --ranks',
      );
    }
    return {
      variation,
      label: labelOf(variation),
      capacity,
      margin,
      judgement: judge(evidence, failed),
      roles: evidence,
    };
  }
}
