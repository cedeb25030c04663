// What the report of one run says to a person: first the answer, then where the memory was over time, then what stood there at the
// peak, then what is not known.

import type { Analysis, DeviceAnalysis } from '../attribution/analysis.ts';
import type { Attribution } from '../attribution/attribution.ts';
import { callSite, frameText, isLibraryFrame } from '../attribution/frames.ts';
import { growthOf } from '../attribution/growth.ts';
import { ModuleNames } from '../attribution/module_name.ts';
import { fullDeviceOf } from '../attribution/out_of_memory.ts';
import { phaseAt, phaseTitle } from '../attribution/phase_title.ts';
import { formatBytes, MiB } from '../base/bytes.ts';
import { weakestEvidence } from '../base/evidence.ts';
import type { ExternalPart } from '../device/gpu_device.ts';
import { MEMORY_KINDS, type MemoryKind } from '../timeline/timeline.ts';
import type { Trace } from '../trace/trace.ts';
import { externalAtPeak } from './document.ts';
import { identityLines } from './identity.ts';
import {
  plain,
  type ReportTable,
  type Section,
  type Sentence,
  strong,
  warning,
} from './section.ts';
import {
  formatDelta,
  formatKnown,
  formatPercent,
  formatRange,
  nestedTitle,
  ownerTitle,
} from './words.ts';

export interface ReportOptions {
  /** The peak (or the event) that is taken apart. */
  readonly at: MemoryKind | number;
  /** Rows of each list of holders. */
  readonly top: number;
  /** Phases nested deeper than this are left out; 0 shows the outermost only. */
  readonly depth: number;
}

export const REPORT_DEFAULTS: ReportOptions = { at: 'allocated', top: 8, depth: 3 };

/** Fewer bytes than this on the host are not worth a table. */
const HOST_MENTION = 100 * MiB;
/** A table of more phases than this folds the repetitions in the middle. */
const PHASE_ROWS = 60;

export function reportSections(
  analysis: Analysis,
  options: ReportOptions = REPORT_DEFAULTS,
): Section[] {
  const gpus = analysis.devices.filter((device) => device.capacity !== null);
  const sections: Section[] = [];
  for (const device of gpus) sections.push(answer(analysis, device));
  if (gpus.length === 0) {
    sections.push({
      sentences: [plain(identity(analysis)), plain('No tensor was ever made on a GPU.')],
      tables: [],
    });
  }
  for (const device of gpus) sections.push(...fullSection(device, options));
  sections.push(phases(analysis, options));
  for (const device of gpus) sections.push(...holders(device, options));
  for (const device of gpus) sections.push(...growth(device));
  sections.push(...caveats(analysis));
  return sections;
}

function identity({ trace, path }: Analysis): string {
  const { header } = trace;
  const steps = `${header.steps} step${header.steps === 1 ? '' : 's'}`;
  const where = path === '' ? '' : `: ${path}`;
  return `${header.framework}, rank ${header.rank} of ${header.world}, ${steps}${where}`;
}

function answer(analysis: Analysis, device: DeviceAnalysis): Section {
  const { timeline, capacity, outOfMemory, evidence } = device;
  const { allocated, resident, reserved } = timeline.peaks;
  const known = !Number.isNaN(resident.bytes);
  const whole = known ? resident.bytes : reserved.bytes;
  const sentences: Sentence[] = [
    strong(
      `${device.name} of rank ${analysis.trace.header.rank} peaks at ${formatBytes(whole)}${known ? '' : ' reserved'}, ${ofCapacity(whole, capacity)}`,
    ),
    plain(
      `${formatBytes(allocated.bytes)} allocated in ${phaseTitle(phaseAt(analysis.trace, allocated.event))}`,
    ),
    plain(identity(analysis)),
  ];
  const { low, high } = { low: timeline.residentLow.bytes, high: timeline.residentHigh.bytes };
  if (known && low < high) {
    sentences.push(
      plain(`With what is uncertain: ${formatBytes(low)} to ${formatBytes(high)} on the device`),
    );
  }
  sentences.push(
    plain(
      `Evidence: allocator ${evidence.allocator}, memory outside it ${evidence.external === 'unknown' ? 'unknown and not counted' : evidence.external}`,
    ),
  );
  if (analysis.measured === undefined) sentences.push(...identityLines(analysis).map(plain));
  if (outOfMemory !== null) sentences.push(...fullSentences(device));
  return { sentences, tables: [peaks(device)] };
}

function ofCapacity(bytes: number, capacity: DeviceAnalysis['capacity']): string {
  if (capacity === null || Number.isNaN(capacity.usableBytes)) {
    return `of ${capacity?.name} (${capacity?.source})`;
  }
  const { name, usableBytes } = capacity;
  return `${formatPercent(bytes, usableBytes)} of ${name} (${formatBytes(usableBytes)})`;
}

function fullSentences({ outOfMemory, timeline, capacity }: DeviceAnalysis): Sentence[] {
  if (outOfMemory === null) return [];
  if (capacity?.evidence === 'executed' || Number.isNaN(capacity?.usableBytes)) {
    // A measured run: it ended there, nobody knows what it would have needed.
    return [warning(outOfMemory.message)];
  }
  const where = phaseTitle(phaseAt(timeline.trace, outOfMemory.event));
  const over = Math.max(
    0,
    (timeline.peaks.resident.bytes || timeline.peaks.reserved.bytes) - (capacity?.usableBytes ?? 0),
  );
  return [
    warning(
      `Does not fit: out of memory in ${where} (event ${outOfMemory.event}), where ${formatBytes(outOfMemory.requestedBytes)} are asked for with ${formatKnown(outOfMemory.instant.resident || outOfMemory.instant.reserved)} in use. The figures of this report are what the whole run needs on a larger device: ${formatBytes(over)} more.`,
    ),
  ];
}

function peaks(device: DeviceAnalysis): ReportTable {
  const { timeline, capacity, evidence } = device;
  return {
    columns: [
      { head: 'Memory' },
      { head: 'Peak', align: 'right' },
      { head: 'of GPU', align: 'right' },
      { head: 'in phase', flexible: true },
      { head: 'event', align: 'right' },
      { head: 'evidence' },
    ],
    rows: MEMORY_KINDS.map((kind) => {
      const peak = timeline.peaks[kind];
      const known =
        kind === 'external'
          ? evidence.external
          : kind === 'resident'
            ? weakestEvidence([evidence.allocator, evidence.external])
            : kind === 'requested'
              ? 'executed'
              : evidence.allocator;
      if (Number.isNaN(peak.bytes)) return [kind, 'unknown', '–', '', '', known];
      return [
        kind,
        formatBytes(peak.bytes),
        formatPercent(peak.bytes, capacity?.usableBytes ?? 0),
        phaseTitle(phaseAt(timeline.trace, peak.event)),
        String(peak.event),
        known,
      ];
    }),
  };
}

function phases(analysis: Analysis, options: ReportOptions): Section {
  const shown = analysis.devices.filter(
    ({ capacity, timeline }) => capacity !== null || timeline.peaks.allocated.bytes > HOST_MENTION,
  );
  const rows = shown.flatMap((device) => phaseRows(analysis.trace, device, options));
  if (rows.length === 0) return { sentences: [plain('No phases were marked.')], tables: [] };
  return {
    sentences: [],
    tables: [
      {
        columns: [
          { head: 'Phase', flexible: true },
          { head: 'Device' },
          { head: 'Before', align: 'right' },
          { head: 'After', align: 'right' },
          { head: 'Delta', align: 'right' },
          { head: 'Peak', align: 'right' },
        ],
        rows,
      },
    ],
  };
}

/** Deep phases go first when there are too many; then the middle is folded into one row, the largest peak kept in sight. */
function phaseRows(trace: Trace, device: DeviceAnalysis, options: ReportOptions): string[][] {
  let { depth } = options;
  const within = () => device.timeline.phases.filter(({ phase }) => phase.depth <= depth);
  while (depth > 1 && within().length > PHASE_ROWS) depth--;
  const spans = within();
  const rows = spans.map(({ phase, before, after, peaks: { allocated } }) => {
    return [
      nestedTitle(trace, phase),
      device.name,
      formatBytes(before.allocated),
      formatBytes(after.allocated),
      formatDelta(after.allocated - before.allocated),
      formatBytes(allocated.bytes),
    ];
  });
  if (rows.length <= PHASE_ROWS) return rows;
  const head = Math.floor(PHASE_ROWS / 2);
  const folded = spans.slice(head, spans.length - head);
  const largest = Math.max(...folded.map(({ peaks: { allocated } }) => allocated.bytes));
  const fold = [`… ${folded.length} more (--json has all)`, '', '', '', '', formatBytes(largest)];
  return [...rows.slice(0, head), fold, ...rows.slice(rows.length - head)];
}

type Holder = readonly [name: string, bytes: number, blocks: number];

function holders(device: DeviceAnalysis, { at, top }: ReportOptions): Section[] {
  const { trace, series } = device.timeline;
  const attribution =
    typeof at === 'number' ? device.attributionAt(at) : device.attributionAtPeak(at);
  const { event, allocated } = attribution;
  const which = typeof at === 'number' ? `at event ${event}` : `at the peak of ${at}`;
  const owners: Holder[] = attribution.owners.map((share) => [
    ownerTitle(share),
    share.bytes,
    share.blocks,
  ]);
  if (attribution.rest > 0) owners.push(['not in the trace', attribution.rest, 0]);
  const cached = series.reserved[event] - series.active[event];
  const waiting = series.active[event] - series.allocated[event];
  const besides = [
    ...(waiting > 0 ? [`${formatBytes(waiting)} freed but waiting for a stream`] : []),
    `${formatBytes(cached)} cached by the allocator`,
    `${formatKnown(series.external[event])} outside the allocator`,
  ];
  return [
    {
      title: `On ${device.name} ${which}: ${formatBytes(allocated)} allocated`,
      sentences: [
        plain(
          `Event ${event}, in ${phaseTitle(phaseAt(trace, event))}. Besides: ${besides.join(', ')}.`,
        ),
      ],
      tables: [
        holderTable('Owner', cut(owners, top * 2), allocated),
        holderTable('Module', cut(moduleRows(attribution), top), allocated),
        holderTable('Operator and call site', cut(siteRows(trace, attribution), top), allocated),
        holderTable('Allocated in phase', cut(originRows(trace, attribution), top), allocated),
      ],
    },
    ...externalSection(device),
  ];
}

function externalSection(device: DeviceAnalysis): Section[] {
  const external = externalAtPeak(device);
  const { name } = device;
  if (external.length === 0) return [];
  return [
    {
      title: `Outside the allocator on ${name}, at the peak of resident`,
      sentences: [],
      tables: [externalTable(external)],
    },
  ];
}

function externalTable(external: readonly ExternalPart[]): ReportTable {
  return {
    columns: [
      { head: 'Component' },
      { head: 'Bytes', align: 'right' },
      { head: 'Range' },
      { head: 'Evidence' },
      { head: 'From', flexible: 'end' },
    ],
    rows: external.map((part) => [
      part.name,
      formatKnown(part.bytes),
      part.low === part.high ? '' : formatRange(part.low, part.high),
      part.evidence,
      part.provenance,
    ]),
  };
}

/** Frames of the failing stack that are shown. */
const FULL_FRAMES = 6;

/** Where the job ends on this device: who asked, PyTorch's own text, and what was live. */
function fullSection(device: DeviceAnalysis, { top }: ReportOptions): Section[] {
  const full = fullDeviceOf(device);
  const { outOfMemory } = device;
  if (full === undefined || outOfMemory === null) return [];
  const { instant, message, requestedBytes, kind } = outOfMemory;
  const sentences = [plain(message)];
  if (kind === 'allocator') {
    const where = full.module === '' ? 'outside every module' : `in ${full.module}`;
    sentences.push(
      plain(`${formatBytes(requestedBytes)} asked for by ${full.operator}, ${where}.`),
    );
    const frames = full.frames.filter((frame) => !isLibraryFrame(frame)).slice(0, FULL_FRAMES);
    for (const frame of frames) sentences.push(plain(`  at ${frameText(frame)}`));
  }
  const live: Holder[] = full.owners.map((share) => [ownerTitle(share), share.bytes, share.blocks]);
  if (full.rest > 0) live.push(['not in the trace', full.rest, 0]);
  const cached = instant.reserved - instant.active;
  if (cached > 0) live.push(['cached by the allocator', cached, 0]);
  const whole = Number.isNaN(instant.resident) ? instant.reserved : instant.resident;
  return [
    {
      title: `Where ${device.name} is full: event ${full.event}`,
      sentences,
      tables: [
        holderTable('Live just before', cut(live, top * 2), whole),
        externalTable(full.external),
      ],
    },
  ];
}

function holderTable(head: string, rows: readonly Holder[], whole: number): ReportTable {
  return {
    columns: [
      { head, flexible: true },
      { head: 'Bytes', align: 'right' },
      { head: 'Share', align: 'right' },
      { head: 'Blocks', align: 'right' },
    ],
    rows: rows.map(([name, bytes, blocks]) => [
      name,
      formatBytes(bytes),
      formatPercent(bytes, whole),
      String(blocks),
    ]),
  };
}

function moduleRows({ repeatedModules }: Attribution): Holder[] {
  return repeatedModules
    .filter((module) => module.own.bytes > 0)
    .map(({ name, count, own }) => {
      const times = count > 1 ? ` ×${count}` : '';
      return [`${name === '' ? '(root)' : name}${times}`, own.bytes, own.blocks];
    });
}

/** Stacks by operator and call site: frames inside PyTorch do not tell two callers apart. */
function siteRows(trace: Trace, { stacks }: Attribution): Holder[] {
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

function originRows(trace: Trace, { origins }: Attribution): Holder[] {
  return origins.map(({ phase, bytes, blocks }) => [
    phaseTitle(trace.phases[phase]),
    bytes,
    blocks,
  ]);
}

/** The first `count` rows and one that stands for the rest. */
function cut(rows: readonly Holder[], count: number): readonly Holder[] {
  if (rows.length <= count + 1) return rows;
  const rest = rows.slice(count);
  const sum = (column: 1 | 2) => rest.reduce((total, row) => total + row[column], 0);
  return [...rows.slice(0, count), [`${rest.length} more`, sum(1), sum(2)]];
}

function growth(device: DeviceAnalysis): Section[] {
  const { trace } = device.timeline;
  const names = new ModuleNames(trace);
  // Stacks that a reader cannot tell apart are one line.
  const lines = new Map<string, { bytes: number; repetitions: number }>();
  for (const { per, bytesEach, op, stack, module, repetitions } of growthOf(device.timeline)) {
    const where = names.of(module) === '' ? '' : ` in ${names.of(module)}`;
    const until = per === 'step' ? 'is kept' : 'is kept until the micro-batches are over';
    const line = `${per === 'step' ? 'step' : 'micro-batch'}: ${trace.strings[op]} at ${frameText(callSite(trace, stack))}${where} ${until}`;
    const entry = lines.get(line) ?? { bytes: 0, repetitions };
    lines.set(line, { ...entry, bytes: entry.bytes + bytesEach });
  }
  if (lines.size === 0) return [];
  return [
    {
      title: `Growth on ${device.name}`,
      sentences: [...lines]
        .sort(([, a], [, b]) => b.bytes - a.bytes)
        .slice(0, 5)
        .map(([line, { bytes, repetitions }]) =>
          warning(
            `${formatDelta(Math.round(bytes))} each ${line} (${repetitions} time${repetitions === 1 ? '' : 's'} in a row).`,
          ),
        ),
      tables: [],
    },
  ];
}

function caveats({ trace, measured, calibration, devices }: Analysis): Section[] {
  const sentences: Sentence[] = [...(measured?.notes ?? []), ...(calibration?.notes ?? [])].map(
    warning,
  );
  for (const note of new Set(devices.flatMap(({ notes }) => notes))) sentences.push(plain(note));
  const uncovered = new Map<string, number>();
  for (const { name } of trace.uncovered) uncovered.set(name, (uncovered.get(name) ?? 0) + 1);
  if (uncovered.size > 0) {
    const names = [...uncovered].map(([name, count]) => (count > 1 ? `${name} ×${count}` : name));
    const more = names.length > 8 ? ` and ${names.length - 8} more` : '';
    sentences.push(
      warning(
        `Not covered, or assumed: ${names.slice(0, 8).join(', ')}${more}. See coverage in --json.`,
      ),
    );
  }
  for (const fault of trace.integrity.faults) sentences.push(warning(`Incomplete: ${fault}.`));
  for (const { cause } of trace.errors)
    sentences.push(warning(`The training code failed: ${cause}`));
  return sentences.length === 0 ? [] : [{ sentences, tables: [] }];
}
