import { findAdapter } from '../../sidecar/adapter.ts';
import {
  ensureEnvironment,
  installFramework,
  type SetupOptions,
} from '../../sidecar/environment.ts';
import { defineCommand } from '../command.ts';
import { flag, text } from '../option.ts';

interface SetupConfig {
  readonly framework: string | undefined;
  readonly torchIndex: string | undefined;
  readonly force: boolean;
}

export const setup = defineCommand<SetupConfig>({
  name: 'setup',
  summary: 'Make the Python environment that traces run in, or check it',
  description:
    'It is also made by itself on first use. It lies in the cache folder (XDG_CACHE_HOME/memtracker), keyed by the pinned packages; nothing outside is changed. With MEMTRACKER_PYTHON set, that environment is checked and used as it is.',
  options: {
    framework: text(
      'NAME',
      'also install what checkouts of this framework import (torchtitan, megatron)',
    ).optional(),
    torchIndex: text(
      'auto|default|URL',
      'where torch comes from: the CPU builds of PyTorch when they can be reached (auto), the default index, or a wheel index',
      { env: 'MEMTRACKER_TORCH_INDEX', defaultText: 'auto' },
    ).optional(),
    force: flag('make it again even when it is whole'),
  },
  examples: [
    {
      command: 'setup',
      description: 'once, before the first trace (or let the first trace do it)',
    },
    {
      command: 'setup --framework torchtitan',
      description: 'with what a TorchTitan checkout imports',
    },
  ],
  async run(config, { output, env, signal }) {
    const options: SetupOptions = {
      env,
      torchIndex: config.torchIndex,
      force: config.force,
      signal,
      onProgress: (line, kind) => output.progress(line, { force: kind === 'stage' }),
    };
    const adapter = config.framework === undefined ? undefined : findAdapter(config.framework);
    const environment = await ensureEnvironment(options);
    if (adapter !== undefined) await installFramework(environment, adapter, options);
    output.endProgress();
    output.product(
      `torch ${environment.torch} on Python ${environment.pythonVersion}: ${environment.python}`,
    );
  },
});
