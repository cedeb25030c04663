import { relative, resolve } from 'node:path';
import { ExitStatus } from '../../base/errors.ts';
import { captureRun } from '../../measured/capture/launch.ts';
import { programVersion } from '../../sidecar/program_version.ts';
import { defineCommand } from '../command.ts';
import { choice, flag, integer, passthrough, text } from '../option.ts';

interface CaptureConfig {
  readonly framework: string;
  readonly out: string;
  readonly purpose: 'calibration' | 'validation';
  readonly stacks: 'python' | 'all';
  readonly maxEntries: number;
  readonly synchronize: boolean;
  readonly emptyCache: boolean;
  readonly resetPeak: boolean;
  readonly json: boolean;
  readonly command: readonly string[];
}

export const capture = defineCommand<CaptureConfig>({
  name: 'capture',
  summary: 'Record the memory of a real GPU run, under your own launcher and torch',
  description:
    'Runs your launch command as it is. Every process that uses CUDA writes one file: the phases of a trace, torch\u2019s memory history, and at each phase boundary the allocator\u2019s counters, what the driver and NVML see, and NCCL\u2019s own statistics where the version has them. Nothing waits for the device, empties a cache or resets a peak unless asked to. The file is also written when the run fails or runs out of memory.',
  options: {
    framework: text('NAME', 'whose phases are labelled: torchtitan, megatron or script').default(
      'script',
    ),
    out: text('DIR', 'folder for the files, one a rank', { short: 'o' }).default('capture'),
    purpose: choice(
      ['validation', 'calibration'],
      'what the run may be used for: `calibrate` takes calibration runs only, accuracy is scored on validation runs only',
    ).default('validation'),
    stacks: choice(
      ['python', 'all'],
      'stacks of each allocation; all adds C++ frames (operators) and is slow to write',
    ).default('python'),
    maxEntries: integer(
      'N',
      'entries that the history may hold; when it is full no peak can be given',
      { defaultText: '0: no limit' },
    ).default(0),
    synchronize: flag('wait for the device at each phase boundary (changes the run)'),
    emptyCache: flag('empty the cache at each phase boundary (changes the run)'),
    resetPeak: flag('reset the peak counters at each phase boundary'),
    json: flag('print what was written as JSON'),
    command: passthrough('COMMAND', 'your launch command'),
  },
  examples: [
    {
      command: 'capture --out run1 -- torchrun --nproc-per-node 8 train.py --its --args',
      description: 'any PyTorch script',
    },
    {
      command:
        'capture --framework torchtitan --out run1 -- torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file llama3_8b.toml',
      description: 'a TorchTitan job, labelled as `memtracker trace` labels it',
    },
    {
      command:
        'capture --framework megatron --out run1 -- srun python pretrain_gpt.py --its --args',
      description: 'a Megatron-LM job under Slurm',
    },
  ],
  async run(config, { cwd, env, output }) {
    const outcome = await captureRun(
      {
        out: resolve(cwd, config.out),
        framework: config.framework,
        memtracker: programVersion(),
        max_entries: config.maxEntries,
        stacks: config.stacks,
        synchronize: config.synchronize,
        empty_cache: config.emptyCache,
        reset_peak: config.resetPeak,
        purpose: config.purpose,
        command: config.command,
        cwd,
      },
      env,
    );
    const files = outcome.files.map((file) => relative(cwd, file));
    if (config.json) {
      output.json({ exit_code: outcome.exitCode, signal: outcome.signal, files });
    } else {
      for (const file of files) output.product(file);
    }
    if (files.length === 0) {
      output.warn('no process of the job used CUDA under this capture: nothing was written');
    }
    if (outcome.exitCode !== 0) {
      const how = outcome.signal ?? `status ${outcome.exitCode}`;
      output.warn(`the job ended with ${how}; what was recorded until then is in the files`);
      return ExitStatus.trainingFailed;
    }
    return files.length === 0 ? ExitStatus.uncovered : ExitStatus.done;
  },
});
