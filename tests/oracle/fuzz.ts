// Compares the model with the real allocator on many random traces, a hundred at a time.
//
//   npx tsx tests/oracle/fuzz.ts [--traces 2000] [--first 1] [--steps 400] [--keep]

import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { compare, generateTraces, judge, whyNoJudge } from './judge.ts';

const BATCH = 100;

const { values } = parseArgs({
  options: {
    traces: { type: 'string', default: '2000' },
    first: { type: 'string', default: '1' },
    steps: { type: 'string', default: '400' },
    keep: { type: 'boolean', default: false },
  },
});

async function main(): Promise<number> {
  const reason = whyNoJudge();
  if (reason !== null) {
    console.error(`cannot run: ${reason}`);
    return 1;
  }
  const total = Number(values.traces);
  const first = Number(values.first);
  const byProfile = new Map<string, number>();
  let steps = 0;
  let differing = 0;
  for (let done = 0; done < total; done += BATCH) {
    const count = Math.min(BATCH, total - done);
    const folder = mkdtempSync(join(tmpdir(), 'memtracker-fuzz-'));
    generateTraces(folder, first + done, count, Number(values.steps));
    const traces = readdirSync(folder).map((name) => join(folder, name));
    const judged = join(folder, 'judged');
    judge(traces, judged);
    for (const trace of traces) {
      const verdict = await compare(trace, join(judged, trace.slice(folder.length + 1)));
      steps += verdict.steps;
      const { profile } = JSON.parse(readFileSync(trace, 'utf8').split('\n', 1)[0]);
      byProfile.set(profile, (byProfile.get(profile) ?? 0) + 1);
      if (verdict.difference !== null) {
        differing++;
        console.log(`differs: ${trace}, step ${verdict.steps}`, JSON.stringify(verdict.difference));
      }
    }
    console.error(`${done + count} traces, ${steps} steps, ${differing} differing`);
    if (!values.keep && differing === 0) rmSync(folder, { recursive: true });
  }
  const profiles = [...byProfile].sort().map(([name, count]) => `${name} ${count}`);
  console.log(`${total} traces of ${byProfile.size} profiles (${profiles.join(', ')})`);
  console.log(`${steps} steps compared, ${differing} traces differ`);
  return differing === 0 ? 0 : 1;
}

process.exitCode = await main();
