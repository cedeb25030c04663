// A comparison as JUnit: one case for each kind of peak, failing where it grows by more than the threshold.

import { formatBytes } from '../base/bytes.ts';
import type { Comparison } from '../compare/comparison.ts';
import type { Threshold } from '../compare/threshold.ts';
import { thresholdText } from '../compare/threshold.ts';
import { MEMORY_KINDS } from '../timeline/timeline.ts';
import { overThreshold } from './compare_sections.ts';
import { junitXml, type TestCase } from './junit.ts';
import { formatDelta } from './words.ts';

export function compareJunit(comparison: Comparison, threshold: Threshold | null): string {
  const over = threshold === null ? [] : overThreshold(comparison, threshold);
  const cases: TestCase[] = [];
  for (const { name, peaks } of comparison.devices) {
    for (const kind of MEMORY_KINDS) {
      const { a, b, delta } = peaks[kind];
      const base = { suite: name, name: `peak of ${kind}` };
      if (Number.isNaN(delta)) {
        cases.push({ ...base, outcome: { kind: 'skipped', message: 'not known in both runs' } });
        continue;
      }
      const output = `${formatBytes(a)} -> ${formatBytes(b)} (${formatDelta(delta)})`;
      const failed =
        threshold !== null && over.some((item) => item.device === name && item.kind === kind);
      cases.push({
        ...base,
        output,
        ...(failed
          ? {
              outcome: {
                kind: 'failure',
                message: `grows by more than ${thresholdText(threshold)}: ${output}`,
              },
            }
          : {}),
      });
    }
  }
  return junitXml('memtracker compare', cases);
}
