import type { Band } from '../../base/band.ts';
import { formatBytes } from '../../base/bytes.ts';
import { UserError } from '../../base/errors.ts';
import { findGpu } from '../../device/gpus.ts';
import type { NcclSettings } from '../../nccl/communicator.ts';
import { honouredVariables, readEnvironment } from '../../nccl/environment.ts';
import { findRelease, NCCL_RELEASES } from '../../nccl/release.ts';
import {
  parseOperations,
  type RankReport,
  type StepReport,
  stepReports,
} from '../../nccl/report.ts';
import type { MemoryTerm } from '../../nccl/term.ts';
import { findTopology, topologyNames } from '../../nccl/topology.ts';
import { type TableColumn, tableLines } from '../../report/table.ts';
import { defineCommand } from '../command.ts';
import { flag, integer, list, text } from '../option.ts';

interface NcclConfig {
  readonly nccl: string;
  readonly topology: string;
  readonly nodes: number;
  readonly gpusPerNode: number | undefined;
  readonly group: string | undefined;
  readonly ops: string;
  readonly ranks: string;
  readonly env: readonly string[];
  readonly json: boolean;
}

const DEFAULT_VERSION = NCCL_RELEASES[NCCL_RELEASES.length - 1].version;

export const nccl = defineCommand<NcclConfig>({
  name: 'nccl',
  summary: 'Print what one NCCL communicator takes of device memory, step by step and by rank',
  description:
    'Each step is the creation of the communicator (init) or a collective with its payload. A step adds memory where it is ' +
    'the first to use an algorithm or a connection, and nothing when it is repeated. Three figures (least, likely, most) are ' +
    'printed where one is not known. Code and kernel stacks, which a process pays once, stand apart and are not in the sums.',
  options: {
    nccl: text('VERSION', `NCCL version, 2.19 to 2.30`).default(DEFAULT_VERSION),
    topology: text('NAME', `topology preset (${topologyNames().join(', ')}) or a topology file`),
    nodes: integer('N', 'nodes of the job', { minimum: 1 }).default(1),
    gpusPerNode: integer('N', "GPUs used on each node, if not all of the topology's", {
      minimum: 1,
    }).optional(),
    group: text('RANKS', 'global ranks of the communicator, for example 0,8', {
      defaultText: 'every rank of the job',
    }).optional(),
    ops: text(
      'LIST',
      'steps: init, all_reduce:4096, send:1MiB@PEER, … separated by commas',
    ).default('init'),
    ranks: text('RANKS', 'global ranks to print: all, or a list').default('0'),
    env: list('NAME=VALUE', 'an NCCL_* variable of the job; may be given more than once'),
    json: flag('print JSON'),
  },
  examples: [
    {
      command:
        'nccl --nccl 2.30.7 --topology dgx-h100 --ops init,all_reduce:4096,all_reduce:512MiB,all_to_all:4096',
      description: 'one node of eight H100',
    },
    {
      command:
        'nccl --topology dgx-h100 --nodes 2 --group 0,8 --ops init,all_reduce:4096 --ranks all',
      description: 'a data-parallel group with one GPU on each of two nodes',
    },
  ],
  async run(config, { output }) {
    const choice = findRelease(config.nccl);
    const topology = findTopology(config.topology);
    const environment = readEnvironment(variables(config.env), choice.release, { strict: true });
    const gpusPerNode = config.gpusPerNode ?? topology.gpusPerNode;
    if (gpusPerNode > topology.gpusPerNode) {
      throw new UserError(
        'bad-placement',
        `${topology.name} has ${topology.gpusPerNode} GPUs a node, not ${gpusPerNode}`,
      );
    }
    const world = config.nodes * gpusPerNode;
    const everyone = Array.from({ length: world }, (_, rank) => rank);
    const members = config.group === undefined ? everyone : ranks(config.group, world);
    const shown = config.ranks === 'all' ? members : ranks(config.ranks, world);
    const settings: NcclSettings = {
      release: choice.release,
      topology,
      environment,
      placement: { gpusPerNode },
    };
    const gpu = findGpu(topology.gpu);
    const reports = stepReports(settings, members, shown, parseOperations(config.ops), gpu);
    const notes = choice.note === undefined ? [] : [choice.note];
    for (const variable of environment.notModelled) notes.push(`${variable} is not modelled`);

    if (config.json) {
      output.json({
        nccl: { version: choice.version, table: choice.release.version, tag: choice.release.tag },
        topology: topology.name,
        gpu: gpu.name,
        nodes: config.nodes,
        gpus_per_node: gpusPerNode,
        group: members,
        environment: {
          honoured: environment.honoured,
          without_effect: environment.withoutEffect,
          not_modelled: environment.notModelled,
        },
        notes,
        ranks: Object.fromEntries(reports.map((report) => [report.rank, rankJson(report)])),
      });
      return;
    }
    for (const note of notes) output.warn(note);
    output.note(
      `NCCL ${choice.version} (${choice.release.tag}), ${topology.name}, ${members.length} ranks, ` +
        `${config.nodes} node${config.nodes === 1 ? '' : 's'} of ${gpusPerNode} ${gpu.name}`,
    );
    const set = environment.honoured.length > 0 ? environment.honoured.join(', ') : 'none set';
    output.note(`variables that change memory: ${set} (known: ${honouredVariables().length})`);
    for (const [alike, report] of alikeRanks(reports)) {
      output.product(rankText(alike, report));
    }
  },
});

/** @throws UserError `bad-environment` for what is not NAME=VALUE. */
function variables(pairs: readonly string[]): Record<string, string> {
  const env: Record<string, string> = {};
  for (const pair of pairs) {
    const at = pair.indexOf('=');
    if (at <= 0) {
      throw new UserError('bad-environment', `--env must be written NAME=VALUE, got "${pair}"`);
    }
    const name = pair.slice(0, at);
    if (!name.startsWith('NCCL_')) {
      throw new UserError(
        'unknown-nccl-variable',
        `${name} is not an NCCL variable. Honoured: ${honouredVariables().join(', ')}.`,
      );
    }
    env[name] = pair.slice(at + 1);
  }
  return env;
}

/** `0,3,8-11`. @throws UserError `bad-ranks`. */
function ranks(written: string, world: number): number[] {
  const result: number[] = [];
  for (const part of written.split(',')) {
    const match = /^\s*(\d+)(?:-(\d+))?\s*$/.exec(part);
    if (!match) {
      throw new UserError('bad-ranks', `"${written}" is not a list of ranks such as 0,7 or 0-3`);
    }
    const first = Number(match[1]);
    const last = match[2] === undefined ? first : Number(match[2]);
    if (last >= world) {
      throw new UserError(
        'bad-ranks',
        `rank ${last} is not in a job of ${world} ranks (0 to ${world - 1})`,
      );
    }
    for (let rank = first; rank <= last; rank++) result.push(rank);
  }
  return [...new Set(result)];
}

function rankJson({ channels, steps }: RankReport): unknown {
  return {
    channels: {
      collective: channels.ring,
      p2p: channels.p2p,
      p2p_per_peer: channels.p2pPerPeer,
      nvls: channels.nvls,
      nvls_heads: channels.nvlsHeads,
    },
    steps: steps.map((step) => ({
      op: step.operation,
      added_bytes: step.added.likely,
      added_low_bytes: step.added.low,
      added_high_bytes: step.added.high,
      total_bytes: step.total.likely,
      total_low_bytes: step.total.low,
      total_high_bytes: step.total.high,
      algorithm: step.reason ?? null,
      terms: step.terms.map(termJson),
      process_terms: step.processTerms.map(termJson),
    })),
  };
}

function termJson({ name, bytes, evidence, source, lifetime, omits }: MemoryTerm): unknown {
  return {
    name,
    bytes: bytes.likely,
    low_bytes: bytes.low,
    high_bytes: bytes.high,
    evidence,
    source,
    lifetime,
    omits,
  };
}

/** Ranks with the same steps together, in order of their first. */
function alikeRanks(reports: readonly RankReport[]): [number[], RankReport][] {
  const groups = new Map<string, [number[], RankReport]>();
  for (const report of reports) {
    const key = JSON.stringify(rankJson(report));
    const group = groups.get(key);
    if (group) group[0].push(report.rank);
    else groups.set(key, [[report.rank], report]);
  }
  return [...groups.values()];
}

const COLUMNS: readonly TableColumn[] = [
  { head: 'step and term' },
  { head: 'adds', align: 'right' },
  { head: 'total', align: 'right' },
  { head: 'evidence' },
  { head: 'source' },
];

function rankText(alike: readonly number[], { channels, steps }: RankReport): string {
  const counts =
    `${channels.ring} collective channels, ${channels.nvls} NVLS, ${channels.p2p} point-to-point ` +
    `(${channels.p2pPerPeer} to a peer)`;
  // Provenance is of no use when it is cut: lines may be wider than the terminal.
  const lines = tableLines(COLUMNS, steps.flatMap(stepRows), Number.POSITIVE_INFINITY);
  return `rank ${alike.join(', ')}: ${counts}\n${lines.join('\n')}\n`;
}

function stepRows(step: StepReport): string[][] {
  const head = [step.operation, figure(step.added), figure(step.total), '', step.reason ?? ''];
  const rows = step.terms.map((term) => termRow(term, term.name, figure(term.bytes)));
  const once = step.processTerms.map((term) =>
    termRow(term, `once a process: ${term.name}`, `(${figure(term.bytes)})`),
  );
  return [head, ...rows, ...once];
}

function termRow(term: MemoryTerm, name: string, size: string): string[] {
  return [`  ${name}`, size, '', term.evidence, term.source];
}

/** One figure where it is known, `likely [low to high]` where it is not. */
function figure({ low, likely, high }: Band): string {
  if (low === likely && likely === high) return formatBytes(likely);
  return `${formatBytes(likely)} [${formatBytes(low)} to ${formatBytes(high)}]`;
}
