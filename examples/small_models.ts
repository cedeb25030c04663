// An MLP and a convolution model with AdamW, with and without full activation checkpointing: predicted on fake tensors, or, with the
// same flags, measured on a GPU.
//
//   npx tsx examples/small_models.ts --model mlp --checkpoint
//   npx tsx examples/small_models.ts --model mlp --checkpoint --device gpu
//
// The model and its training loop are small_models.py, imported by both.

import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { formatBytes } from '../src/base/bytes.ts';
import { openBridge } from '../src/scenario/bridge.ts';
import { ensureEnvironment } from '../src/sidecar/environment.ts';

const FOLDER = dirname(fileURLToPath(import.meta.url));

export interface SmallModel {
  readonly model: 'mlp' | 'conv';
  readonly checkpoint: boolean;
  readonly steps: number;
}

/** Peaks in bytes. */
export interface SmallModelPeaks {
  readonly requested: number;
  readonly allocated: number;
  readonly reserved: number;
}

export async function predict({ model, checkpoint, steps }: SmallModel): Promise<SmallModelPeaks> {
  await using bridge = await openBridge();
  const sys = await bridge.import('sys');
  await sys.path.insert(0, FOLDER);
  const code = await bridge.import('small_models');
  await bridge.fake(() => code.train(model, checkpoint, steps));
  const { tensor, allocated, reserved } = await bridge.report();
  return {
    requested: tensor.peak.bytes,
    allocated: allocated.peak.bytes,
    reserved: reserved.peak.bytes,
  };
}

/** On this machine's GPU. Rejects when there is none. */
export async function measure({ model, checkpoint, steps }: SmallModel): Promise<SmallModelPeaks> {
  const { python } = await ensureEnvironment({ env: process.env });
  const flags = [
    '--model',
    model,
    '--steps',
    String(steps),
    ...(checkpoint ? ['--checkpoint'] : []),
  ];
  const { stdout } = await execa(python, [`${FOLDER}/small_models.py`, ...flags]);
  return JSON.parse(stdout) as SmallModelPeaks;
}

if (process.argv[1]?.endsWith('small_models.ts')) {
  const { values } = parseArgs({
    options: {
      model: { type: 'string', default: 'mlp' },
      checkpoint: { type: 'boolean', default: false },
      steps: { type: 'string', default: '2' },
      device: { type: 'string', default: 'fake' },
    },
  });
  const run: SmallModel = {
    model: values.model === 'conv' ? 'conv' : 'mlp',
    checkpoint: values.checkpoint,
    steps: Number(values.steps),
  };
  const peaks = await (values.device === 'gpu' ? measure : predict)(run);
  for (const [kind, bytes] of Object.entries(peaks)) {
    console.log(`${kind.padEnd(10)} ${formatBytes(bytes)}`);
  }
}
