// A report as JUnit: does the run fit on each device, was it traced whole, was everything covered.

import type { Analysis } from '../attribution/analysis.ts';
import { phaseAt, phaseTitle } from '../attribution/phase_title.ts';
import { formatBytes } from '../base/bytes.ts';
import { junitXml, type TestCase } from './junit.ts';
import { formatPercent } from './words.ts';

export function reportJunit({ trace, devices }: Analysis): string {
  const suite = `${trace.header.framework}.rank${trace.header.rank}`;
  const cases: TestCase[] = [];
  for (const { name, capacity, timeline, outOfMemory } of devices) {
    if (capacity === null) continue;
    const { resident, reserved } = timeline.peaks;
    const peak = Number.isNaN(resident.bytes) ? reserved.bytes : resident.bytes;
    const output = `peak ${formatBytes(peak)}, ${formatPercent(peak, capacity.usableBytes)} of ${capacity.name}`;
    const where = outOfMemory === null ? '' : phaseTitle(phaseAt(trace, outOfMemory.event));
    cases.push({
      suite,
      name: `${name} fits on ${capacity.name}`,
      output,
      ...(outOfMemory === null
        ? {}
        : { outcome: { kind: 'failure', message: `out of memory in ${where}; ${output}` } }),
    });
  }
  const { complete, faults } = trace.integrity;
  const causes = [
    ...trace.errors.filter(({ fatal }) => fatal).map(({ cause }) => cause),
    ...faults,
  ];
  cases.push({
    suite,
    name: 'the trace is complete',
    ...(complete ? {} : { outcome: { kind: 'error', message: causes.join('; ') } }),
  });
  const uncovered = [...new Set(trace.uncovered.map(({ name }) => name))];
  cases.push({
    suite,
    name: 'every operator is covered',
    ...(uncovered.length === 0
      ? {}
      : { outcome: { kind: 'skipped', message: `not covered: ${uncovered.join(', ')}` } }),
  });
  return junitXml('memtracker report', cases);
}
