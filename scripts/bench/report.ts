// What a report of a million events costs: the built program in a process of its own, and the page as a file. Times that are bounded
// are of the processor, not of the clock: the machine may be shared.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { MiB } from '../../src/base/bytes.ts';
import { builtProgram } from '../../tests/cli/built_program.ts';
import { MILLION_EVENT_JOB, writeSyntheticTrace } from '../../tests/traces/synthetic.ts';
import type { Benchmark, Measurement } from './benchmark.ts';

/** Has the process say at its end what it used. */
const SAY_USAGE = `data:text/javascript,process.on('exit',()=>process.stderr.write('USAGE'+JSON.stringify(process.resourceUsage())))`;

export const benchmark: Benchmark = {
  name: 'report',
  summary: 'memtracker report on a trace of about a million events',
  async run() {
    const folder = mkdtempSync(join(tmpdir(), 'memtracker-bench-'));
    try {
      const trace = join(folder, 'million.mtrace');
      const events = await writeSyntheticTrace(trace, MILLION_EVENT_JOB);
      const page = join(folder, 'report.html');
      const commands: readonly (readonly [string, readonly string[]])[] = [
        ['report', ['report', trace]],
        ['report --json', ['report', trace, '--json']],
        ['report --html', ['report', trace, '--html', page]],
        ['compare with itself', ['compare', trace, trace]],
      ];
      const program = await builtProgram();
      const measurements: Measurement[] = [
        { what: 'events in the trace', value: events, unit: '' },
        { what: 'size of the trace', value: statSync(trace).size / MiB, unit: 'MiB' },
      ];
      for (const [name, command] of commands) {
        const { wall, processor, memory } = runCommand(program, command);
        // The bound is that promised for a report; the others are shown beside it.
        const bounded = name === 'report';
        measurements.push(
          {
            what: `${name}: processor time`,
            value: processor,
            unit: 's',
            ...(bounded ? { limit: { at: 'most', value: 3 } as const } : {}),
          },
          { what: `${name}: by the clock`, value: wall, unit: 's' },
          {
            what: `${name}: largest memory`,
            value: memory,
            unit: 'MiB',
            ...(bounded ? { limit: { at: 'most', value: 1024 } as const } : {}),
          },
        );
      }
      measurements.push({
        what: 'size of the page',
        value: statSync(page).size / MiB,
        unit: 'MiB',
        limit: { at: 'most', value: 5 },
      });
      return measurements;
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  },
};

function runCommand(
  program: string,
  command: readonly string[],
): {
  wall: number;
  processor: number;
  memory: number;
} {
  const begin = performance.now();
  const errors = execFileSync(
    'sh',
    [
      '-c',
      '"$@" 2>&1 >/dev/null',
      'sh',
      process.execPath,
      '--import',
      SAY_USAGE,
      program,
      ...command,
    ],
    { encoding: 'utf8', maxBuffer: 1 << 24 },
  );
  const wall = (performance.now() - begin) / 1000;
  const usage = JSON.parse(errors.slice(errors.lastIndexOf('USAGE') + 5)) as NodeJS.ResourceUsage;
  return {
    wall,
    processor: (usage.userCPUTime + usage.systemCPUTime) / 1e6,
    memory: usage.maxRSS / 1024,
  };
}
