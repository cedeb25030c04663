// Memory outside PyTorch on the same clock as the allocator: when NCCL comes decides the peak that the device shows.
//
//   npx tsx examples/overhead_timeline.ts
//
// A context of 4 MiB; a tensor of 25 MiB with an external workspace of 3 MiB at its peak; NCCL with 8 MiB for good and two temporaries of
// 2 MiB that overlap. NCCL comes either first, or after the tensor is gone and the allocator's cache is emptied.

import { formatBytes, MiB } from '../src/base/bytes.ts';
import { type Bridge, openBridge } from '../src/scenario/bridge.ts';

export interface OverheadResult {
  /** Peak of reserved + external, bytes, with fixed and with expandable segments. */
  readonly fixed: number;
  readonly expandable: number;
}

async function nccl(bridge: Bridge): Promise<void> {
  await bridge.phase('nccl', {}, async () => {
    await bridge.externalAlloc('NCCL', 8 * MiB, { category: 'nccl' });
    await bridge.externalAlloc('temporary 1', 2 * MiB, { category: 'nccl' });
    await bridge.externalAlloc('temporary 2', 2 * MiB, { category: 'nccl' });
    await bridge.externalFree('temporary 1');
    await bridge.externalFree('temporary 2');
  });
}

async function tensor(bridge: Bridge): Promise<void> {
  const uint8 = await bridge.torch.uint8;
  await bridge.phase('tensor', {}, () =>
    bridge.scope(async () => {
      await bridge.torch.empty$(25 * MiB, { dtype: uint8, device: 'cuda' });
      await bridge.trackExternal('workspace', 3 * MiB, { category: 'workspace' }, async () => {});
    }),
  );
}

export async function overheadTimeline(ncclFirst: boolean): Promise<OverheadResult> {
  await using bridge = await openBridge();
  await bridge.fake(async () => {
    await bridge.externalAlloc('context', 4 * MiB, { category: 'context' });
    if (ncclFirst) await nccl(bridge);
    await tensor(bridge);
    await bridge.emptyAllocatorCache();
    if (!ncclFirst) await nccl(bridge);
  });
  const fixed = await bridge.report();
  const expandable = await bridge.report({ allocConf: 'expandable_segments:True' });
  return { fixed: fixed.resident.peak.bytes, expandable: expandable.resident.peak.bytes };
}

if (process.argv[1]?.endsWith('overhead_timeline.ts')) {
  for (const first of [true, false]) {
    const { fixed, expandable } = await overheadTimeline(first);
    const order = first ? 'NCCL before the tensor' : 'NCCL after the tensor';
    console.log(`${order}: ${formatBytes(fixed)} fixed, ${formatBytes(expandable)} expandable`);
  }
}
