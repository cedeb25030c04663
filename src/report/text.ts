// The report for a terminal: first the answer, then where the memory was over time, then what stood there at the peak.
// Fits 100 columns.

import type { Analysis, DeviceAnalysis } from '../attribution/analysis.ts';
import type { Attribution } from '../attribution/attribution.ts';
import { callSite, frameText } from '../attribution/frames.ts';
import { phaseAt, phaseTitle } from '../attribution/phase_title.ts';
import { formatBytes } from '../base/bytes.ts';
import { MEMORY_KINDS } from '../timeline/timeline.ts';
import type { Trace } from '../trace/trace.ts';
import { tableLines } from './table.ts';
import { formatDelta, formatKnown, formatPercent, ownerTitle } from './words.ts';

export interface TextOptions {
  /** Columns that a line may take. */
  readonly width: number;
  /** Rows of each list of holders. */
  readonly top: number;
  /** Phases nested deeper than this are left out; 0 shows the outermost only. */
  readonly depth: number;
  readonly bold: (text: string) => string;
  readonly warn: (text: string) => string;
}

export const PLAIN_TEXT: TextOptions = {
  width: 100,
  top: 8,
  depth: 3,
  bold: (text) => text,
  warn: (text) => text,
};

/** Fewer bytes than this on the host are not worth a table. */
const HOST_MENTION = 100 * 1024 * 1024;

export function textReport(analysis: Analysis, options: TextOptions = PLAIN_TEXT): string {
  const lines = [identity(analysis)];
  for (const device of analysis.devices) {
    if (device.capacity === null) continue;
    lines.push('', ...answer(analysis, device, options), '', ...peaksTable(device, options));
  }
  if (analysis.devices.length === 0) lines.push('', 'No tensor was ever allocated.');
  lines.push('', ...phasesTable(analysis, options));
  for (const device of analysis.devices) {
    if (device.capacity === null) continue;
    lines.push('', ...holders(analysis.trace, device, options));
  }
  lines.push(...caveats(analysis, options));
  return `${lines.join('\n')}\n`;
}

function identity({ trace, path }: Analysis): string {
  const { header } = trace;
  const where = header.checkout ?? path;
  return `${header.framework}, rank ${header.rank} of ${header.world}, ${header.steps} step${header.steps === 1 ? '' : 's'}: ${where}`;
}

function answer(analysis: Analysis, device: DeviceAnalysis, options: TextOptions): string[] {
  const { timeline, capacity, outOfMemory } = device;
  const { allocated, resident, reserved } = timeline.peaks;
  const phase = phaseTitle(phaseAt(analysis.trace, allocated.event));
  const lines = [
    options.bold(`${device.name} peaks at ${formatBytes(allocated.bytes)} allocated in ${phase}`),
  ];
  if (capacity === null) return lines;
  const whole = Number.isNaN(resident.bytes)
    ? { bytes: reserved.bytes, words: 'reserved, external memory not known' }
    : { bytes: resident.bytes, words: 'on the device' };
  lines.push(
    `${formatBytes(whole.bytes)} ${whole.words}: ${formatPercent(whole.bytes, capacity.usableBytes)} of ${capacity.name} (${formatBytes(capacity.usableBytes)})`,
  );
  if (outOfMemory !== null) {
    const where = phaseTitle(phaseAt(analysis.trace, outOfMemory.event));
    lines.push(
      options.warn(
        `Out of memory in ${where}: a request of ${formatBytes(outOfMemory.requestedBytes)} with ${formatKnown(outOfMemory.instant.resident)} in use. The figures here are what the job needs on a larger device.`,
      ),
    );
  }
  return lines;
}

function peaksTable(device: DeviceAnalysis, options: TextOptions): string[] {
  const { timeline, capacity } = device;
  const rows = MEMORY_KINDS.map((kind) => {
    const peak = timeline.peaks[kind];
    if (Number.isNaN(peak.bytes)) return [kind, 'unknown', '–', '', ''];
    return [
      kind,
      formatBytes(peak.bytes),
      formatPercent(peak.bytes, capacity?.usableBytes ?? 0),
      phaseTitle(phaseAt(timeline.trace, peak.event)),
      String(peak.event),
    ];
  });
  return tableLines(
    [
      { head: 'Memory' },
      { head: 'Peak', align: 'right' },
      { head: 'of GPU', align: 'right' },
      { head: 'in phase', flexible: true },
      { head: 'event', align: 'right' },
    ],
    rows,
    options.width,
  );
}

function phasesTable(analysis: Analysis, options: TextOptions): string[] {
  const rows: string[][] = [];
  const shown = analysis.devices.filter(
    (device) => device.capacity !== null || device.timeline.peaks.allocated.bytes > HOST_MENTION,
  );
  for (const device of shown) {
    for (const { phase, before, after, peaks } of device.timeline.phases) {
      if (phase.depth > options.depth) continue;
      const outer = analysis.trace.phases[phase.parent];
      const own = phaseTitle(phase).slice(outer === undefined ? 0 : outer.path.length + 1);
      rows.push([
        `${'  '.repeat(phase.depth)}${own}`,
        device.name,
        formatBytes(before.allocated),
        formatBytes(after.allocated),
        formatDelta(after.allocated - before.allocated),
        formatBytes(peaks.allocated.bytes),
      ]);
    }
  }
  if (rows.length === 0) return ['No phases were marked.'];
  return tableLines(
    [
      { head: 'Phase', flexible: true },
      { head: 'Device' },
      { head: 'Before', align: 'right' },
      { head: 'After', align: 'right' },
      { head: 'Delta', align: 'right' },
      { head: 'Peak', align: 'right' },
    ],
    rows,
    options.width,
  );
}

function holders(trace: Trace, device: DeviceAnalysis, options: TextOptions): string[] {
  const attribution = device.attributionAtPeak();
  const table = (head: string, rows: (readonly [string, number, number])[]) =>
    tableLines(
      [
        { head, flexible: true },
        { head: 'Bytes', align: 'right' },
        { head: 'Share', align: 'right' },
        { head: 'Blocks', align: 'right' },
      ],
      rows.map(([name, bytes, blocks]) => [
        name,
        formatBytes(bytes),
        formatPercent(bytes, attribution.allocated),
        String(blocks),
      ]),
      options.width,
    );
  const owners: (readonly [string, number, number])[] = attribution.owners.map((share) => [
    ownerTitle(share),
    share.bytes,
    share.blocks,
  ]);
  if (attribution.rest > 0) owners.push(['no storage in the trace', attribution.rest, 0]);
  return [
    options.bold(
      `On ${device.name} at the peak (event ${attribution.event}, ${formatBytes(attribution.allocated)} allocated)`,
    ),
    '',
    ...table('Owner', cut(owners, options.top * 2)),
    '',
    ...table('Module', cut(moduleRows(attribution), options.top)),
    '',
    ...table('Operator and call site', cut(stackRows(trace, attribution), options.top)),
  ];
}

function moduleRows({ repeatedModules }: Attribution): (readonly [string, number, number])[] {
  return repeatedModules
    .filter((module) => module.own.bytes > 0)
    .map((module) => {
      const times = module.count > 1 ? ` ×${module.count}` : '';
      const name = module.name === '' ? '(root)' : module.name;
      return [`${name}${times}`, module.own.bytes, module.own.blocks];
    });
}

/** Stacks by operator and call site: frames inside PyTorch do not tell two callers apart. */
function stackRows(trace: Trace, { stacks }: Attribution): (readonly [string, number, number])[] {
  const sites = new Map<string, [number, number]>();
  for (const { stack, op, bytes, blocks } of stacks) {
    const site = `${trace.strings[op]}  ${frameText(callSite(trace, stack))}`;
    const entry = sites.get(site) ?? [0, 0];
    sites.set(site, [entry[0] + bytes, entry[1] + blocks]);
  }
  return [...sites]
    .map(([site, [bytes, blocks]]) => [site, bytes, blocks] as const)
    .sort((a, b) => b[1] - a[1]);
}

/** The first `count` rows and one that stands for the rest. */
function cut(
  rows: (readonly [string, number, number])[],
  count: number,
): (readonly [string, number, number])[] {
  if (rows.length <= count + 1) return rows;
  const rest = rows.slice(count);
  const sum = (column: 1 | 2) => rest.reduce((total, row) => total + row[column], 0);
  return [...rows.slice(0, count), [`${rest.length} more`, sum(1), sum(2)]];
}

function caveats({ trace }: Analysis, options: TextOptions): string[] {
  const lines: string[] = [];
  if (trace.uncovered.length > 0) {
    const names = [...new Set(trace.uncovered.map((item) => item.name))];
    lines.push(
      options.warn(
        `Not covered: ${names.slice(0, 6).join(', ')}${names.length > 6 ? ` and ${names.length - 6} more` : ''}.`,
      ),
    );
  }
  for (const fault of trace.integrity.faults) lines.push(options.warn(`Incomplete: ${fault}.`));
  for (const error of trace.errors) lines.push(options.warn(`Failed: ${error.cause}`));
  return lines.length === 0 ? [] : ['', ...lines];
}
