// Two all-gathers of a 64 MiB shard over eight ranks, one after the other: what tensors take, and what NCCL adds to it.
//
//   npx tsx examples/collectives.ts
//
// The collectives are PyTorch's functional ones under the fake process group; the input of each stays alive until it is waited for.
// NCCL's ring buffers are taken at the first collective and kept: 12 MiB a channel (see p2pProfile).

import { formatBytes, MiB } from '../src/base/bytes.ts';
import { p2pProfile } from '../src/nccl/profile.ts';
import { openBridge } from '../src/scenario/bridge.ts';

const SHARD = 64 * MiB;
const WORLD = 8;

export interface CollectivesResult {
  /** Largest sum of live tensors, bytes. */
  readonly tensor: number;
  /** The same with NCCL's buffers, bytes; without a profile NCCL is omitted, not zero. */
  readonly combined: number;
}

export async function collectives(channels: number | null): Promise<CollectivesResult> {
  await using bridge = await openBridge({ world: WORLD });
  const uint8 = await bridge.torch.uint8;
  await bridge.fake(async ({ torch }) => {
    const shard = await torch.empty$(SHARD, { dtype: uint8, device: 'cuda' });
    for (const step of [1, 2]) {
      await bridge.phase('all_gather', { step }, async () => {
        if (channels !== null && step === 1) {
          const { atFirstUse, evidence, provenance } = p2pProfile(channels);
          const metadata = { evidence: evidence as 'source', provenance };
          await bridge.externalAlloc('NCCL', atFirstUse, { category: 'nccl', metadata });
        }
        await bridge.scope(async () => {
          await bridge.wait(await bridge.collective('all_gather', shard));
        });
      });
    }
  });
  const { tensor, peak } = await bridge.report();
  return { tensor: tensor.peak.bytes, combined: peak.bytes };
}

if (process.argv[1]?.endsWith('collectives.ts')) {
  for (const channels of [null, 4, 16]) {
    const { tensor, combined } = await collectives(channels);
    const nccl = channels === null ? 'NCCL omitted' : `NCCL P2P, ${channels} channels`;
    console.log(
      `${nccl.padEnd(22)} tensors ${formatBytes(tensor)}, combined ${formatBytes(combined)}`,
    );
  }
}
