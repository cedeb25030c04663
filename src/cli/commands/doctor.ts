import { resolve } from 'node:path';
import { ExitStatus, UserError } from '../../base/errors.ts';
import { checkCheckout, findAdapter, loadAdapters } from '../../sidecar/adapter.ts';
import {
  checkFrameworkPackages,
  ensureEnvironment,
  environmentState,
  isMade,
  managedFolder,
  type PythonEnvironment,
} from '../../sidecar/environment.ts';
import { sourceIdentity } from '../../sidecar/source_identity.ts';
import { EventStream } from '../../sidecar/stream.ts';
import { type CommandContext, defineCommand } from '../command.ts';
import { flag, text } from '../option.ts';

interface DoctorConfig {
  readonly framework: string | undefined;
  readonly checkout: string | undefined;
  readonly json: boolean;
}

interface Finding {
  readonly what: string;
  readonly ok: boolean;
  /** What is there, or what is wrong and what to do. */
  readonly said: string;
}

export const doctor = defineCommand<DoctorConfig>({
  name: 'doctor',
  summary: 'Tell what a trace needs, what is there, what is missing and what to do',
  description: 'Installs nothing. Exit status 3 when something is missing.',
  options: {
    framework: text('NAME', 'also look at what this framework needs').optional(),
    checkout: text('DIR', 'and at this checkout of it').optional(),
    json: flag('print JSON'),
  },
  examples: [
    { command: 'doctor', description: 'before the first trace' },
    {
      command: 'doctor --framework torchtitan --checkout ~/torchtitan',
      description: 'can this checkout be traced?',
    },
  ],
  async run(config, context) {
    const { output } = context;
    const findings = await examine(config, context);
    const healthy = findings.every((finding) => finding.ok);
    if (config.json) output.json({ schema: 'memtracker.doctor/1', healthy, findings });
    else {
      const { green, red } = output.colors;
      const width = Math.max(...findings.map((finding) => finding.what.length));
      for (const { what, ok, said } of findings) {
        output.product(`${ok ? green('ok     ') : red('missing')} ${what.padEnd(width)}  ${said}`);
      }
    }
    return healthy ? ExitStatus.done : ExitStatus.usage;
  },
});

async function examine(config: DoctorConfig, context: CommandContext): Promise<Finding[]> {
  const findings: Finding[] = [
    { what: 'Node', ok: true, said: `${process.version} on ${process.platform} ${process.arch}` },
  ];
  const find = async (what: string, look: () => Promise<string>): Promise<void> => {
    try {
      findings.push({ what, ok: true, said: await look() });
    } catch (error) {
      if (!(error instanceof UserError)) throw error;
      findings.push({ what, ok: false, said: error.message });
    }
  };
  let environment: PythonEnvironment | undefined;
  const given = context.env.MEMTRACKER_PYTHON;
  if (given === undefined || given === '') {
    await find('Python', async () => {
      const { python } = await managedFolder(context.env);
      return `${python.version}, ${python.executable}`;
    });
  }
  await find('environment', async () => {
    environment = await existingEnvironment(context.env);
    return `torch ${environment.torch}, Python ${environment.pythonVersion}, ${environment.python}`;
  });
  await find('event stream', streamWorks);
  await find('adapters', async () =>
    loadAdapters()
      .map((adapter) => adapter.manifest.name)
      .join(', '),
  );
  if (config.framework !== undefined) {
    const adapter = findAdapter(config.framework);
    if (adapter.manifest.checkout) {
      await find('checkout', async () => {
        const folder = checkCheckout(adapter, config.checkout, context.cwd) ?? '';
        const { describe, dirty } = await sourceIdentity(folder);
        const revision =
          describe === null ? 'not under git' : `${describe}${dirty ? ', changed' : ''}`;
        return `${adapter.manifest.title} ${revision}, ${resolve(context.cwd, folder)}`;
      });
    }
    const present = environment;
    if (present !== undefined) {
      await find(`packages of ${adapter.manifest.title}`, async () => {
        await checkFrameworkPackages(present, adapter);
        return `${adapter.manifest.packages.length} looked for, all there`;
      });
    }
  }
  return findings;
}

/** The environment if it is whole. @throws UserError that says what to do; nothing is installed. */
async function existingEnvironment(env: CommandContext['env']): Promise<PythonEnvironment> {
  const given = env.MEMTRACKER_PYTHON;
  if (given === undefined || given === '') {
    const state = await environmentState(env);
    if (state.halfMade) {
      throw new UserError(
        'ENVIRONMENT',
        `the set-up of ${state.folder} was interrupted; run memtracker setup, which makes it again`,
      );
    }
    if (!isMade(state.folder)) {
      throw new UserError('ENVIRONMENT', `not made yet; run memtracker setup (${state.folder})`);
    }
  }
  // Whichever index torch came from: asking for another would install it.
  return ensureEnvironment({ env, torchIndex: 'auto' });
}

async function streamWorks(): Promise<string> {
  const stream = await EventStream.open();
  const { endpoint } = stream;
  await stream.close();
  return endpoint.startsWith('ipc:')
    ? 'a socket file in a private folder'
    : 'loopback TCP with CURVE';
}
