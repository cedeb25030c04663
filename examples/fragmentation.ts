// The same tensors, fixed segments and expandable segments: why `reserved` differs when `allocated` does not.
//
//   npx tsx examples/fragmentation.ts
//
// Three 16 MiB tensors, freed; three of 14 MiB; one of 5 MiB. Two GB200 (torch 2.15.0.dev20260928) measured 68 MiB reserved with fixed
// segments and 60 MiB with expandable ones.

import { formatBytes, MiB } from '../src/base/bytes.ts';
import { openBridge } from '../src/scenario/bridge.ts';

export interface FragmentationResult {
  readonly allocated: number;
  readonly fixed: number;
  readonly expandable: number;
}

export async function fragmentation(): Promise<FragmentationResult> {
  await using bridge = await openBridge();
  const uint8 = await bridge.torch.uint8;
  const bytesOf = (size: number) => bridge.torch.empty$(size, { dtype: uint8, device: 'cuda' });
  await bridge.fake(async () => {
    await bridge.scope(async () => {
      for (let i = 0; i < 3; i++) await bytesOf(16 * MiB);
    });
    for (let i = 0; i < 3; i++) await bytesOf(14 * MiB);
    await bytesOf(5 * MiB);
  });
  const fixed = await bridge.report();
  const expandable = await bridge.report({ allocConf: 'expandable_segments:True' });
  return {
    allocated: fixed.allocated.peak.bytes,
    fixed: fixed.reserved.peak.bytes,
    expandable: expandable.reserved.peak.bytes,
  };
}

if (process.argv[1]?.endsWith('fragmentation.ts')) {
  const { allocated, fixed, expandable } = await fragmentation();
  console.log(`allocated at the peak      ${formatBytes(allocated)}`);
  console.log(`reserved, fixed segments   ${formatBytes(fixed)}`);
  console.log(`reserved, expandable ones  ${formatBytes(expandable)}`);
}
