// A real Ray cluster of one node on this machine. Needs Ray (pip install "ray[default]"); MEMTRACKER_RAY names its executable when it is
// not on the path.

import { mkdtemp, rm } from 'node:fs/promises';
import { createServer } from 'node:net';
import { execa } from 'execa';

export const RAY = process.env.MEMTRACKER_RAY ?? 'ray';

/** Why a cluster cannot be started here; undefined when it can. */
export async function rayProblem(): Promise<string | undefined> {
  const { exitCode } = await execa(RAY, ['--version'], { reject: false, timeout: 120_000 });
  return exitCode === 0
    ? undefined
    : `${RAY} does not run (pip install "ray[default]", or set MEMTRACKER_RAY)`;
}

export interface RayCluster {
  /** Of the dashboard, for --ray-address. */
  readonly address: string;
  stop(): Promise<void>;
}

export async function startRay(): Promise<RayCluster> {
  // Ray's sockets lie below its temporary folder and must have short paths.
  const folder = await mkdtemp('/tmp/ray-');
  const [port, dashboard] = [await freePort(), await freePort()];
  const started = await execa(
    RAY,
    [
      'start',
      '--head',
      `--port=${port}`,
      '--node-ip-address=127.0.0.1',
      '--include-dashboard=true',
      '--dashboard-host=127.0.0.1',
      `--dashboard-port=${dashboard}`,
      '--num-cpus=2',
      `--temp-dir=${folder}`,
      '--disable-usage-stats',
    ],
    { reject: false, timeout: 240_000 },
  );
  const stop = async () => {
    await execa(RAY, ['stop', '--force'], { reject: false, timeout: 120_000 });
    await rm(folder, { recursive: true, force: true });
  };
  if (started.exitCode !== 0) {
    await stop();
    throw new Error(`ray start failed:\n${started.stdout}\n${started.stderr}`);
  }
  return { address: `http://127.0.0.1:${dashboard}`, stop };
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(0, '127.0.0.1', () => {
      const address = server.address();
      server.close(() =>
        resolve(typeof address === 'object' && address !== null ? address.port : 0),
      );
    });
  });
}
