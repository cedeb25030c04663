// `npm test`: everything, TypeScript and Python, with one count at the end. A single file: `npx vitest run FILE`.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { z } from 'zod';
import { developmentPython, torchTitanRelease } from './development_python.ts';

interface Count {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

const vitestSchema = z.object({
  numPassedTests: z.number(),
  numFailedTests: z.number(),
  numPendingTests: z.number(),
  numTodoTests: z.number(),
  testResults: z.array(z.object({ status: z.string(), assertionResults: z.array(z.unknown()) })),
});

async function runVitest(report: string, env: Record<string, string>): Promise<Count> {
  const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${report}`];
  const result = await execa('npx', ['vitest', 'run', ...reporters], {
    reject: false,
    stdio: 'inherit',
    env,
  });
  const read = vitestSchema.parse(JSON.parse(await readFile(report, 'utf8')));
  // A file that does not even load has no tests to fail.
  const broken = read.testResults.filter(
    ({ status, assertionResults }) => status === 'failed' && assertionResults.length === 0,
  ).length;
  const failed = read.numFailedTests + broken;
  return {
    passed: read.numPassedTests,
    failed: failed === 0 && result.exitCode !== 0 ? 1 : failed,
    skipped: read.numPendingTests + read.numTodoTests,
  };
}

async function runPytest(
  python: string,
  report: string,
  env: Record<string, string>,
): Promise<Count> {
  const options = ['-q', '-rs', '-p', 'no:cacheprovider', `--junitxml=${report}`];
  const result = await execa(python, ['-m', 'pytest', 'python/tests', ...options], {
    reject: false,
    stdio: 'inherit',
    env,
  });
  const suite = /<testsuite [^>]*>/.exec(await readFile(report, 'utf8'))?.[0] ?? '';
  const number = (name: string) => Number(new RegExp(` ${name}="(\\d+)"`).exec(suite)?.[1] ?? 0);
  const failed = number('failures') + number('errors');
  const skipped = number('skipped');
  return {
    passed: number('tests') - failed - skipped,
    failed: failed === 0 && result.exitCode !== 0 ? 1 : failed,
    skipped,
  };
}

const python = await developmentPython();
const env = {
  MEMTRACKER_PYTHON: python,
  // A checkout of the main branch (MEMTRACKER_TORCHTITAN, MEMTRACKER_MEGATRON) is the caller's to name; tests that need one skip.
  MEMTRACKER_TORCHTITAN_RELEASE: await torchTitanRelease(python),
};
const folder = await mkdtemp(join(tmpdir(), 'memtracker-tests-'));
let counts: Count[];
try {
  counts = [
    await runVitest(join(folder, 'vitest.json'), env),
    await runPytest(python, join(folder, 'pytest.xml'), env),
  ];
} finally {
  await rm(folder, { recursive: true, force: true });
}
const sum = (name: keyof Count) => counts.reduce((total, count) => total + count[name], 0);
const skipped = sum('skipped');
console.log(
  `${sum('passed')} passed, ${sum('failed')} failed${skipped > 0 ? `, ${skipped} skipped` : ''}`,
);
process.exitCode = sum('failed') === 0 && sum('passed') > 0 ? 0 : 1;
