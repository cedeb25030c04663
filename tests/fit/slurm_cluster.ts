// A real Slurm of one node on this machine: munged, slurmctld and slurmd with a configuration in a folder of its own. Needs
// Debian's slurm-wlm and munge, and root (slurmd runs jobs as the submitting user).

import { existsSync } from 'node:fs';
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { execa } from 'execa';

/** Why a Slurm cannot be started here; undefined when it can. */
export function slurmProblem(): string | undefined {
  for (const path of [
    '/usr/sbin/munged',
    '/usr/sbin/slurmctld',
    '/usr/sbin/slurmd',
    '/usr/bin/sbatch',
  ]) {
    if (!existsSync(path)) return `${path} is not installed (Debian: slurm-wlm, munge)`;
  }
  return process.getuid?.() === 0 ? undefined : 'slurmd needs root';
}

export interface SlurmCluster {
  /** For the environment of sbatch, squeue and what calls them. */
  readonly env: Readonly<Record<string, string>>;
  stop(): Promise<void>;
}

export async function startSlurm(): Promise<SlurmCluster> {
  const folder = await mkdtemp(join(tmpdir(), 'slurm-'));
  await chmod(folder, 0o755);
  await Promise.all(['state', 'spool', 'munge'].map((name) => mkdir(join(folder, name))));
  // munged refuses sockets and keys in folders that others could write to.
  await chmod(join(folder, 'munge'), 0o755);
  const key = join(folder, 'munge', 'key');
  await execa('dd', ['if=/dev/urandom', `of=${key}`, 'bs=128', 'count=1']);
  await chmod(key, 0o400);
  const socket = join(folder, 'munge', 'socket');
  const node = hostname().split('.')[0];
  const [controllerPort, daemonPort] = [
    20_000 + (process.pid % 10_000),
    31_000 + (process.pid % 10_000),
  ];
  const conf = join(folder, 'slurm.conf');
  await writeFile(
    conf,
    [
      'ClusterName=memtracker',
      `SlurmctldHost=${node}(127.0.0.1)`,
      `SlurmctldPort=${controllerPort}`,
      `SlurmdPort=${daemonPort}`,
      'SlurmUser=root',
      'AuthType=auth/munge',
      `AuthInfo=socket=${socket}`,
      'CredType=cred/munge',
      'ProctrackType=proctrack/linuxproc',
      'TaskPlugin=task/none',
      'SelectType=select/cons_tres',
      'SchedulerType=sched/backfill',
      'ReturnToService=2',
      'MpiDefault=none',
      `StateSaveLocation=${folder}/state`,
      `SlurmdSpoolDir=${folder}/spool`,
      `SlurmctldPidFile=${folder}/slurmctld.pid`,
      `SlurmdPidFile=${folder}/slurmd.pid`,
      `SlurmctldLogFile=${folder}/slurmctld.log`,
      `SlurmdLogFile=${folder}/slurmd.log`,
      `NodeName=${node} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN`,
      `PartitionName=main Nodes=${node} Default=YES MaxTime=INFINITE State=UP`,
      '',
    ].join('\n'),
  );
  const env = { SLURM_CONF: conf };
  const daemon = (file: string, words: readonly string[]) =>
    execa(file, words, { env, reject: false, stdio: 'ignore' });
  const daemons: ReturnType<typeof daemon>[] = [];
  const start = (file: string, ...words: string[]) => daemons.push(daemon(file, words));
  const stop = async () => {
    for (const child of daemons.reverse()) child.kill('SIGTERM', new Error('the test is over'));
    await Promise.all(daemons);
    await rm(folder, { recursive: true, force: true });
  };
  const munge = join(folder, 'munge');
  start(
    '/usr/sbin/munged',
    '--foreground',
    '--force',
    `--key-file=${key}`,
    `--socket=${socket}`,
    `--pid-file=${munge}/pid`,
    `--log-file=${munge}/log`,
    `--seed-file=${munge}/seed`,
  );
  await until(() => existsSync(socket));
  start('/usr/sbin/slurmctld', '-D');
  start('/usr/sbin/slurmd', '-D', '-N', node);
  try {
    await until(async () => {
      const { stdout } = await execa('sinfo', ['--noheader', '--format=%T'], {
        env,
        reject: false,
      });
      return /^(idle|mixed|allocated)/.test(stdout);
    });
  } catch (error) {
    await stop();
    throw error;
  }
  return { env, stop };
}

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (let i = 0; i < 300; i++) {
    if (await condition()) return;
    await delay(200);
  }
  throw new Error('the Slurm daemons did not come up within a minute');
}
