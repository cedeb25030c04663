// Kimi K3 on 512 ranks (PP8, DP64, EP8 laid over DP): the state that one rank holds, and the peak with two layers gathered ahead.
//
//   npx tsx examples/kimi_k3_inventory.ts
//
// From the published geometry alone: 2,779,931,738,208 parameters in 93 layers. What is counted: fp32 parameter, gradient and two moments
// (16 bytes a parameter, sharded), router buffers, and a window of two layers gathered in bf16 with their staging copies. What is not:
// activations, workspaces, the rest of NCCL. The verdict is therefore `unproven`: a partial inventory never says that a job fits.

import { GiB, MiB } from '../src/base/bytes.ts';
import { type Bridge, openBridge } from '../src/scenario/bridge.ts';
import type { ScenarioReport } from '../src/scenario/scenario_report.ts';

const WIDTH = 7168;
const VOCABULARY = 163_840;
const LAYERS = 93;
const HEADS = 96;
const HEAD = 128;
const QUERY_RANK = 1536;
const KEY_RANK = 512;
const ROPE = 64;
const DENSE_HIDDEN = 33_792;
const LATENT = 3584;
const EXPERT_HIDDEN = 3072;
const EXPERTS = 896;
const PROJECTED = HEADS * HEAD;

const MLA =
  WIDTH * QUERY_RANK +
  QUERY_RANK +
  QUERY_RANK * HEADS * (HEAD + ROPE) +
  WIDTH * (KEY_RANK + ROPE) +
  KEY_RANK +
  KEY_RANK * HEADS * (HEAD + HEAD) +
  2 * WIDTH * PROJECTED;
const KDA =
  5 * WIDTH * PROJECTED +
  3 * PROJECTED * 4 +
  WIDTH * HEAD +
  HEAD * PROJECTED +
  WIDTH * HEADS +
  HEAD +
  HEADS +
  PROJECTED;
/** Parameters of the experts of one MoE layer. */
const EXPERT_PARAMETERS = 3 * EXPERTS * LATENT * EXPERT_HIDDEN;
/** Router buffers of one MoE layer, bytes, on every rank. */
const ROUTER_BYTES = EXPERTS * (1000 * 4 + 8);
const EMBEDDING = VOCABULARY * WIDTH;
const OUTPUT = VOCABULARY * WIDTH + 3 * WIDTH;
const VISION =
  3 * 14 * 14 * 1024 +
  64 ** 2 * 1024 +
  27 * (4 * 1024 * 1536 + 2 * 1024 * 4096 + 2 * 1024) +
  1024 +
  (4 * 1024) ** 2 +
  4 * 1024 * WIDTH +
  WIDTH;

/** Parameters of a layer outside its experts. */
function denseParameters(layer: number): number {
  const attention = layer % 4 === 3 || layer === LAYERS - 1 ? MLA : KDA;
  if (layer === 0) return attention + 4 * WIDTH + 3 * WIDTH * DENSE_HIDDEN;
  const router = WIDTH * EXPERTS + 2 * WIDTH * LATENT + LATENT + 3 * WIDTH * 2 * EXPERT_HIDDEN;
  return attention + 6 * WIDTH + router;
}

const PIPELINE = 8;
const DATA = 64;
const EXPERT = 8;

export interface StageInventory {
  readonly stage: number;
  readonly layers: readonly number[];
  /** Parameters of the stage, all its ranks together. */
  readonly dense: number;
  readonly expert: number;
}

export function inventory(): StageInventory[] {
  return Array.from({ length: PIPELINE }, (_, stage) => {
    const layers = [...Array(LAYERS).keys()].filter(
      (layer) => Math.floor((layer * PIPELINE) / LAYERS) === stage,
    );
    const outside = (stage === 0 ? EMBEDDING + VISION : 0) + (stage === PIPELINE - 1 ? OUTPUT : 0);
    return {
      stage,
      layers,
      dense: layers.reduce((sum, layer) => sum + denseParameters(layer), outside),
      expert: layers.filter((layer) => layer > 0).length * EXPERT_PARAMETERS,
    };
  });
}

export function totalParameters(): number {
  return inventory().reduce((sum, { dense, expert }) => sum + dense + expert, 0);
}

/** Bytes of state on one rank of a stage: 16 a parameter, sharded over DP (the experts over EP and expert DP). */
export function stateBytes({ dense, expert }: StageInventory): number {
  return 16 * (Math.ceil(dense / DATA) + Math.ceil(expert / DATA));
}

export interface K3Options {
  /** NCCL's allowance, bytes, declared before the first gather; 0: omitted. */
  readonly nccl: number;
  /** Other memory outside PyTorch, bytes. */
  readonly other: number;
}

/** Plays one rank of `stage` with fake tensors: state, then a window of two gathered layers that slides over the stage. */
export async function playStage(stage: StageInventory, options: K3Options): Promise<Bridge> {
  const bridge = await openBridge({ world: 512, gpu: 'gb200-186gb' });
  const { bfloat16, float32, uint8 } = bridge.torch;
  const types = { bf16: await bfloat16, fp32: await float32, byte: await uint8 };
  const empty = (count: number, dtype: keyof typeof types) =>
    bridge.torch.empty$(count, { dtype: types[dtype], device: 'cuda' });
  const layers = stage.layers.filter((layer) => layer > 0);
  await bridge.fake(async ({ keep }) => {
    if (options.other > 0)
      await bridge.externalAlloc('other', options.other, { category: 'other' });
    if (options.nccl > 0) await bridge.externalAlloc('NCCL', options.nccl, { category: 'nccl' });
    await bridge.phase('state', {}, async () => {
      for (const count of [stage.dense, stage.expert]) {
        // Parameter, gradient and two moments.
        for (let i = 0; i < 4; i++) keep(await empty(Math.ceil(count / DATA), 'fp32'));
      }
      for (const _ of layers) keep(await empty(ROUTER_BYTES, 'byte'));
    });
    const window: unknown[][] = [];
    for (const layer of layers) {
      await bridge.phase('gather', { layer }, async () => {
        if (window.length === 2) await bridge.release(...(window.shift() ?? []));
        const [dense, expert] = [denseParameters(layer), EXPERT_PARAMETERS / EXPERT];
        const staging = [
          await empty(Math.ceil(dense / DATA), 'bf16'),
          await empty(Math.ceil(expert / (DATA / EXPERT)), 'bf16'),
        ];
        window.push([await empty(dense, 'bf16'), await empty(expert, 'bf16')]);
        await bridge.release(...staging);
      });
    }
  });
  return bridge;
}

export interface K3Result {
  readonly tensor: ScenarioReport['tensor'];
  /** Tensors + NCCL, bytes. */
  readonly partial: number;
  readonly fixed: number;
  readonly expandable: number;
}

export async function kimiK3(stage: StageInventory, options: K3Options): Promise<K3Result> {
  await using bridge = await playStage(stage, options);
  const fixed = await bridge.report();
  const expandable = await bridge.report({ allocConf: 'expandable_segments:True' });
  return {
    tensor: fixed.tensor,
    partial: fixed.peak.bytes,
    fixed: fixed.resident.peak.bytes,
    expandable: expandable.resident.peak.bytes,
  };
}

if (process.argv[1]?.endsWith('kimi_k3_inventory.ts')) {
  const gib = (bytes: number) => (bytes / GiB).toFixed(3);
  const stages = inventory();
  console.log(`${totalParameters().toLocaleString('en-US')} parameters`);
  const largest = Math.max(...stages.map(stateBytes));
  console.log(`largest state ${gib(largest)} GiB a rank`);
  // Of the stages with the largest state, one whose first gathered layer is the smaller (MLA) one: its cache is reused worst.
  const stage = stages[3];
  const shared = 3 * 64 * MiB;
  for (const [name, nccl, other] of [
    ['NCCL omitted', 0, 0],
    ['three communicators, 16-channel shared NET pool', shared, 0],
    ['three communicators of 128 MiB', 3 * 128 * MiB, 0],
    ['and 512 MiB of other memory', 3 * 128 * MiB, 512 * MiB],
  ] as const) {
    const { partial, fixed, expandable } = await kimiK3(stage, { nccl, other });
    console.log(
      `${name}: partial peak ${gib(partial)}, on the device ${gib(fixed)} fixed, ${gib(expandable)} expandable GiB`,
    );
  }
  console.log('verdict: unproven (partial: no activations, no workspaces)');
}
