// A communicator: three scenarios of its memory side by side (least, likely, most). They differ where the machine's channel
// counts, the transport between local GPUs or the choice of an algorithm is not known, and are equal where all is known.

import { addBands, type Band, NO_BAND } from '../base/band.ts';
import { type Evidence, weakestEvidence } from '../base/evidence.ts';
import {
  type Algorithm,
  type AlgorithmChoice,
  type AlgorithmRule,
  type Collective,
  defaultAlgorithmRule,
} from './algorithm.ts';
import { type ChannelEstimate, channelCounts, type GroupSituation } from './channels.ts';
import { CommunicatorMemory, type LocalTransport, type MemoryStep } from './communicator_memory.ts';
import type { NcclEnvironment } from './environment.ts';
import { groupLayout } from './layout.ts';
import type { NcclRelease } from './release.ts';
import { communicatorTerm, type MemoryTerm, TERM_NAMES, type TermName } from './term.ts';
import { domainOf, type Placement, type Topology } from './topology.ts';

/** Everything that is the same for all communicators of a job. */
export interface NcclSettings {
  readonly release: NcclRelease;
  readonly topology: Topology;
  readonly environment: NcclEnvironment;
  readonly placement: Placement;
  /** Defaults to {@link defaultAlgorithmRule}. */
  readonly algorithmRule?: AlgorithmRule;
}

/** The parts of ncclConfig_t that change memory. */
export interface CommunicatorConfig {
  readonly minCtas?: number;
  readonly maxCtas?: number;
  /** Connections are shared with the parent of a split. */
  readonly splitShare?: boolean;
}

/** What a step of a communicator's life took. */
export interface CommunicatorStep {
  readonly terms: readonly MemoryTerm[];
  /** Sum of the terms. The three figures of one step need not be in order; those of the running total are. */
  readonly bytes: Band;
  /** Why the algorithm was taken, for a collective. */
  readonly choice?: AlgorithmChoice;
  /** Takes the step back: one of its allocations failed. */
  undo(): void;
}

/** Ranks of a point-to-point call are global ones. */
export interface CollectiveCall {
  readonly collective: Collective;
  readonly bytes: number;
  /** The other side of a send or a receive. Absent: every peer (as in a batch of which only the kind is known). */
  readonly peer?: number | undefined;
}

const SCENARIOS = ['low', 'likely', 'high'] as const;
type Scenario = (typeof SCENARIOS)[number];

export class Communicator {
  /** Global ranks, in the communicator's order. */
  readonly ranks: readonly number[];
  readonly channels: ChannelEstimate;
  readonly #settings: NcclSettings;
  readonly #situation: GroupSituation;
  readonly #memory: Readonly<Record<Scenario, CommunicatorMemory>>;
  readonly #evidence: Evidence;
  #weakest: Evidence;

  /** @param rank the global rank whose memory is modelled; must be one of `ranks`. */
  constructor(
    settings: NcclSettings,
    ranks: readonly number[],
    rank: number,
    config: CommunicatorConfig = {},
    parent?: Communicator,
  ) {
    const self = ranks.indexOf(rank);
    if (self < 0)
      throw new RangeError(`rank ${rank} is not in the communicator [${ranks.join(', ')}]`);
    const { release, topology, environment, placement } = settings;
    this.ranks = ranks;
    this.#settings = settings;
    this.#situation = {
      release,
      topology,
      environment,
      layout: groupLayout(
        ranks.map((member) => domainOf(member, topology, placement, environment.multiNodeNvlink)),
        self,
      ),
      minCtas: config.minCtas,
      maxCtas: config.maxCtas,
    };
    this.channels = channelCounts(this.#situation);
    const transports = localTransports(topology, environment);
    const shares = parent !== undefined && (config.splitShare ?? environment.splitShare);
    const scenario = (name: Scenario) =>
      new CommunicatorMemory(this.#situation, {
        counts: this.channels[name],
        local: transports[name],
        multicastGranularity: topology.multicastGranularity[name],
        sharedWith: shares ? parent.#memory[name] : undefined,
        globalRank: (position) => ranks[position],
      });
    this.#memory = { low: scenario('low'), likely: scenario('likely'), high: scenario('high') };
    const transportKnown = transports.low === transports.high || this.size === 1;
    this.#evidence = weakestEvidence([
      this.channels.evidence,
      transportKnown ? 'source' : 'assumed',
    ]);
    this.#weakest = this.#evidence;
  }

  get size(): number {
    return this.ranks.length;
  }

  /** ncclCommInitRank. */
  initialise(): CommunicatorStep {
    return this.#run((memory) => [memory.initialise()], this.#evidence);
  }

  /** A collective, or one side of a point-to-point call. Takes memory where it is the first of its kind. */
  run(call: CollectiveCall): CommunicatorStep {
    const rule = this.#settings.algorithmRule ?? defaultAlgorithmRule;
    const choice = rule({
      collective: call.collective,
      bytes: call.bytes,
      situation: this.#situation,
      counts: this.channels.likely,
    });
    const target = this.#target(call);
    const step = this.#run(
      (memory, scenario) =>
        algorithmsOf(choice, scenario).map((algorithm) => memory.use(algorithm, target)),
      weakestEvidence([this.#evidence, choice.evidence]),
    );
    return { ...step, choice };
  }

  /** Everything that this communicator holds now. */
  terms(): MemoryTerm[] {
    const held = byScenario((scenario) => this.#memory[scenario].terms());
    return this.#toTerms(held, this.#weakest);
  }

  bytes(): Band {
    return this.terms().reduce((sum, term) => addBands(sum, term.bytes), NO_BAND);
  }

  #target({ collective, peer }: CollectiveCall): {
    sendTo?: number;
    receiveFrom?: number;
    everyPeer?: boolean;
  } {
    if (collective === 'send' || collective === 'recv') {
      const position = peer === undefined ? -1 : this.ranks.indexOf(peer);
      if (position < 0) return { everyPeer: true };
      return collective === 'send' ? { sendTo: position } : { receiveFrom: position };
    }
    return { everyPeer: true };
  }

  #run(
    action: (memory: CommunicatorMemory, scenario: Scenario) => MemoryStep[],
    evidence: Evidence,
  ): CommunicatorStep {
    const before = this.#weakest;
    const steps = byScenario((scenario) => action(this.#memory[scenario], scenario));
    const added = byScenario((scenario) => sumSteps(steps[scenario]));
    const terms = this.#toTerms(added, evidence);
    if (terms.length > 0) this.#weakest = weakestEvidence([before, evidence]);
    return {
      terms,
      bytes: terms.reduce((sum, term) => addBands(sum, term.bytes), NO_BAND),
      undo: () => {
        for (const scenario of SCENARIOS) for (const step of steps[scenario]) step.undo();
        this.#weakest = before;
      },
    };
  }

  #toTerms(
    bytes: Readonly<Record<Scenario, ReadonlyMap<TermName, number>>>,
    evidence: Evidence,
  ): MemoryTerm[] {
    const names = TERM_NAMES.filter((name) =>
      SCENARIOS.some((scenario) => bytes[scenario].has(name)),
    );
    return names.map((name) => {
      const figure = {
        low: bytes.low.get(name) ?? 0,
        likely: bytes.likely.get(name) ?? 0,
        high: bytes.high.get(name) ?? 0,
      };
      return communicatorTerm(name, figure, evidence, this.#settings.release);
    });
  }
}

/** The least scenario runs only what is certain, the most one everything that may be. */
function algorithmsOf(choice: AlgorithmChoice, scenario: Scenario): readonly Algorithm[] {
  if (scenario === 'high') {
    // The likely one first, so that what several share is counted under the same name as there.
    return [choice.likely, ...choice.candidates.filter((algorithm) => algorithm !== choice.likely)];
  }
  if (scenario === 'likely') return [choice.likely];
  return choice.candidates.length === 1 ? choice.candidates : [];
}

function byScenario<T>(value: (scenario: Scenario) => T): Readonly<Record<Scenario, T>> {
  return { low: value('low'), likely: value('likely'), high: value('high') };
}

function sumSteps(steps: readonly MemoryStep[]): Map<TermName, number> {
  const sum = new Map<TermName, number>();
  for (const { added } of steps) {
    for (const [name, bytes] of added) sum.set(name, (sum.get(name) ?? 0) + bytes);
  }
  return sum;
}

function localTransports(
  topology: Topology,
  environment: NcclEnvironment,
): Readonly<Record<Scenario, LocalTransport>> {
  const all = (transport: LocalTransport) => byScenario(() => transport);
  if (!environment.p2p) return all('host');
  if (topology.nvlink) return all('nvlink');
  if (topology.pciePeerToPeer === undefined) return { low: 'host', likely: 'pcie', high: 'pcie' };
  return all(topology.pciePeerToPeer ? 'pcie' : 'host');
}
