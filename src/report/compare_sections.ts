// What a comparison says to a person: the difference, where it comes from, then phase by phase.

import { phaseAt, phaseTitle } from '../attribution/phase_title.ts';
import { formatBytes } from '../base/bytes.ts';
import type { Change } from '../compare/change.ts';
import type { Comparison, DeviceComparison, PhaseComparison } from '../compare/comparison.ts';
import { exceeds, type Threshold, thresholdText } from '../compare/threshold.ts';
import { MEMORY_KINDS, type MemoryKind } from '../timeline/timeline.ts';
import { plain, type ReportTable, type Section, strong, warning } from './section.ts';
import { formatDelta, formatKnown, nestedTitle } from './words.ts';

/** Kinds that `--fail-above` watches. */
const WATCHED: readonly MemoryKind[] = ['allocated', 'active', 'reserved', 'resident'];
/** Phases in the text; the others are counted. */
const PHASE_ROWS = 40;

export interface CompareOptions {
  readonly top: number;
  readonly threshold: Threshold | null;
}

/** Peaks that grew by more than the threshold. */
export function overThreshold(
  { devices }: Comparison,
  threshold: Threshold,
): { device: string; kind: MemoryKind; a: number; b: number }[] {
  return devices.flatMap(({ name, peaks }) =>
    WATCHED.filter((kind) => exceeds(threshold, peaks[kind].a, peaks[kind].b)).map((kind) => ({
      device: name,
      kind,
      a: peaks[kind].a,
      b: peaks[kind].b,
    })),
  );
}

export function compareSections(comparison: Comparison, options: CompareOptions): Section[] {
  const sections: Section[] = [];
  for (const device of comparison.devices) {
    if (device.a.capacity === null && device.peaks.allocated.delta === 0) continue;
    sections.push(difference(comparison, device, options));
    sections.push(...causes(device, options));
    sections.push(phases(device));
  }
  for (const [names, which] of [
    [comparison.onlyInA, 'first'],
    [comparison.onlyInB, 'second'],
  ] as const) {
    if (names.length > 0) {
      sections.push({
        sentences: [warning(`Only the ${which} run uses ${names.join(', ')}.`)],
        tables: [],
      });
    }
  }
  return sections;
}

function difference(
  comparison: Comparison,
  device: DeviceComparison,
  { threshold }: CompareOptions,
): Section {
  const { peaks, name } = device;
  const { a, b, delta } = peaks.allocated;
  const change =
    delta === 0
      ? `${name}: the allocated peak is the same, ${formatBytes(a)}`
      : `${name}: the allocated peak ${delta > 0 ? 'grows' : 'shrinks'} by ${formatBytes(Math.abs(delta))} (${share(delta, a)}), ${formatBytes(a)} → ${formatBytes(b)}`;
  const sentences = [
    strong(change),
    plain(`A: ${comparison.a.path}\nB: ${comparison.b.path}`),
    ...sides(device),
  ];
  if (threshold !== null) {
    const over = overThreshold(comparison, threshold).filter((item) => item.device === name);
    const limit = thresholdText(threshold);
    sentences.push(
      over.length === 0
        ? plain(`No peak grows by more than ${limit}.`)
        : warning(
            `Above the threshold of ${limit}: ${over.map((item) => `${item.kind} ${formatDelta(item.b - item.a)}`).join(', ')}.`,
          ),
    );
  }
  return {
    sentences,
    tables: [
      {
        columns: [
          { head: 'Peak' },
          { head: 'A', align: 'right' },
          { head: 'B', align: 'right' },
          { head: 'B - A', align: 'right' },
          { head: '%', align: 'right' },
          { head: 'B stands in', flexible: true },
        ],
        rows: MEMORY_KINDS.map((kind) => {
          const row = peaks[kind];
          if (Number.isNaN(row.delta)) {
            return [kind, formatKnown(row.a), formatKnown(row.b), '–', '–', ''];
          }
          const { event } = device.b.timeline.peaks[kind];
          return [
            kind,
            formatBytes(row.a),
            formatBytes(row.b),
            formatDelta(row.delta),
            share(row.delta, row.a),
            phaseTitle(phaseAt(device.b.timeline.trace, event)),
          ];
        }),
      },
    ],
  };
}

/** A run that did not fit or did not end is not hidden behind a difference. */
function sides({ a, b }: DeviceComparison) {
  return [['A', a] as const, ['B', b] as const].flatMap(
    ([letter, { outOfMemory, timeline, capacity }]) => {
      const { integrity } = timeline.trace;
      return [
        ...(outOfMemory === null
          ? []
          : [
              warning(
                `${letter} does not fit on ${capacity?.name}: out of memory in ${phaseTitle(phaseAt(timeline.trace, outOfMemory.event))}.`,
              ),
            ]),
        ...(integrity.complete
          ? []
          : [warning(`${letter} is not complete: ${integrity.faults.join('; ')}.`)]),
      ];
    },
  );
}

function causes({ causes: found }: DeviceComparison, { top }: CompareOptions): Section[] {
  const tables = [
    changeTable(
      'Owner',
      found.owners.map((change) => ({ ...change, name: change.name.replaceAll('_', ' ') })),
      top,
    ),
    changeTable('Module', found.modules, top),
    changeTable('Operator and call site', found.callSites, top),
  ].filter((table) => table.rows.length > 0);
  if (tables.length === 0) return [];
  return [{ title: 'What changed at the allocated peaks', sentences: [], tables }];
}

function changeTable(head: string, changes: readonly Change[], top: number): ReportTable {
  return {
    columns: [
      { head, flexible: true },
      { head: 'A', align: 'right' },
      { head: 'B', align: 'right' },
      { head: 'B - A', align: 'right' },
    ],
    rows: changes
      .slice(0, top)
      .map(({ name, a, b, delta }) => [name, formatBytes(a), formatBytes(b), formatDelta(delta)]),
  };
}

function phases(device: DeviceComparison): Section {
  const changed = device.phases.filter(
    // A difference of figures that are not known is NaN, and says nothing.
    ({ peaks }) => peaks === null || MEMORY_KINDS.some((kind) => Math.abs(peaks[kind].delta) > 0),
  );
  const same = device.phases.length - changed.length;
  const rows = changed.slice(0, PHASE_ROWS).map((pair) => phaseRow(device, pair));
  const more = changed.length - rows.length;
  const notes = [
    ...(same > 0 ? [`${same} phase${same === 1 ? '' : 's'} with the same peaks not shown`] : []),
    ...(more > 0 ? [`${more} more in --json`] : []),
  ];
  return {
    title: `Phases of ${device.name}`,
    sentences: notes.length === 0 ? [] : [plain(`${notes.join('; ')}.`)],
    tables:
      rows.length === 0
        ? []
        : [
            {
              columns: [
                { head: 'Phase', flexible: true },
                { head: 'A peak', align: 'right' },
                { head: 'B peak', align: 'right' },
                { head: 'Allocated', align: 'right' },
                { head: 'Reserved', align: 'right' },
                { head: 'Cause' },
              ],
              rows,
            },
          ],
    folded: true,
  };
}

function phaseRow(
  device: DeviceComparison,
  { a, b, peaks, causes: found }: PhaseComparison,
): string[] {
  const name =
    a !== null
      ? nestedTitle(device.a.timeline.trace, a.phase)
      : b !== null
        ? nestedTitle(device.b.timeline.trace, b.phase)
        : '';
  const peak = (side: typeof a) => (side === null ? '–' : formatBytes(side.peaks.allocated.bytes));
  if (peaks === null) {
    return [name, peak(a), peak(b), a === null ? 'only B' : 'only A', '', ''];
  }
  const [first] = found?.owners ?? [];
  return [
    name,
    peak(a),
    peak(b),
    formatDelta(peaks.allocated.delta),
    formatDelta(peaks.reserved.delta),
    first === undefined ? '' : `${first.name.replaceAll('_', ' ')} ${formatDelta(first.delta)}`,
  ];
}

function share(delta: number, of: number): string {
  if (of === 0) return '–';
  return `${delta > 0 ? '+' : ''}${((100 * delta) / of).toFixed(1)} %`;
}
