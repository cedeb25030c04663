// How many micro-batches are alive on each pipeline rank, from PyTorch's own schedule code.
//
//   npx tsx examples/interleaved_1f1b.ts
//
// Interleaved 1F1B, PP8, two virtual stages a rank, 64 micro-batches: torch.distributed.pipelining's schedule says what each rank runs
// in which order; a (stage, micro-batch) pair is alive from its forward to its backward.

import { openBridge } from '../src/scenario/bridge.ts';

export interface PipelineShape {
  readonly ranks: number;
  readonly stagesPerRank: number;
  readonly microBatches: number;
}

/** Most pairs alive at once, by pipeline rank. */
export async function livePairs(shape: PipelineShape): Promise<number[]> {
  const { ranks, stagesPerRank, microBatches } = shape;
  await using bridge = await openBridge({ world: ranks });
  const pipelining = await bridge.import('torch.distributed.pipelining');
  const distributed = await bridge.import('torch.distributed');
  await distributed.init_process_group('nccl');
  const stages: unknown[] = [];
  for (let chunk = 0; chunk < stagesPerRank; chunk++) {
    const module = await bridge.nn.Linear(4, 4);
    stages.push(
      await pipelining.PipelineStage(module, chunk * ranks, ranks * stagesPerRank, 'cpu'),
    );
  }
  const loss = await bridge.import('torch.nn.functional');
  const schedule = await pipelining.ScheduleInterleaved1F1B$(stages, microBatches, {
    loss_fn: await loss.mse_loss,
  });
  // `{0: [0F0, 0F1, …, None, 8B0, …], 1: …}`: stage, forward or backward, micro-batch.
  const builtins = await bridge.import('builtins');
  const order: string = await builtins.str(await schedule.pipeline_order);
  return order
    .split(/\d+: \[/)
    .slice(1)
    .map(mostAlive);
}

function mostAlive(actions: string): number {
  const alive = new Set<string>();
  let most = 0;
  for (const [, stage, action, microBatch] of actions.matchAll(/(\d+)([FB])(\d+)/g)) {
    const pair = `${stage}/${microBatch}`;
    if (action === 'F') alive.add(pair);
    else alive.delete(pair);
    most = Math.max(most, alive.size);
  }
  return most;
}

if (process.argv[1]?.endsWith('interleaved_1f1b.ts')) {
  const pairs = await livePairs({ ranks: 8, stagesPerRank: 2, microBatches: 64 });
  console.log(`live stage/micro-batch pairs by rank: ${pairs.join('/')}`);
}
