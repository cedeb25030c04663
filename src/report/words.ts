// The words of all reports for one thing: so that the same phase, owner or instant reads alike in text, Markdown and HTML.

import type { OwnerShare } from '../attribution/attribution.ts';
import { phaseTitle } from '../attribution/phase_title.ts';
import { formatBytes, GiB, MiB } from '../base/bytes.ts';
import type { Owner } from '../protocol/events.ts';
import type { PhaseMeta, Trace } from '../trace/trace.ts';

export const OWNER_TITLES: Readonly<Record<Owner, string>> = {
  unattributed: 'not attributed',
  parameter: 'parameters',
  gradient: 'gradients',
  buffer: 'buffers',
  optimizer_state: 'optimizer state',
  main_parameter: 'main parameters (fp32)',
  main_gradient: 'main gradients (fp32)',
  activation: 'activations saved for backward',
  unsharded_parameter: 'unsharded parameters (FSDP)',
  gradient_bucket: 'gradient buckets',
  communication: 'communication payloads',
  recompute: 'recompute temporaries',
  workspace: 'workspaces',
  input: 'inputs',
  other: 'other',
};

/** A temporary that nobody claims is told by what the module was doing when it was made. */
export function ownerTitle(share: Pick<OwnerShare, 'owner' | 'pass'>): string {
  const title = OWNER_TITLES[share.owner];
  return share.pass === 'none' ? title : `${title} (${share.pass})`;
}

/** `+1.50 GiB`, `-3 B`, `0 B`. */
export function formatDelta(bytes: number): string {
  return bytes > 0 ? `+${formatBytes(bytes)}` : formatBytes(bytes);
}

/** `61.3 %`. */
export function formatPercent(part: number, whole: number): string {
  return whole > 0 ? `${((100 * part) / whole).toFixed(1)} %` : '–';
}

/** Bytes, or `unknown` for a figure that is not known (NaN). */
export function formatKnown(bytes: number): string {
  return Number.isNaN(bytes) ? 'unknown' : formatBytes(bytes);
}

/** A phase as a row of a table: indented by its depth, without the names of the phases around it. */
export function nestedTitle(trace: Trace, phase: PhaseMeta): string {
  const outer = trace.phases[phase.parent];
  const own = phaseTitle(phase).slice(outer === undefined ? 0 : outer.path.length + 1);
  return `${'  '.repeat(phase.depth)}${own}`;
}

/** `384–784 MiB`: one unit for both, no decimals. */
export function formatRange(low: number, high: number): string {
  if (!(low <= high)) return 'unknown';
  return high < 10 * GiB
    ? `${(low / MiB).toFixed(0)}–${(high / MiB).toFixed(0)} MiB`
    : `${(low / GiB).toFixed(1)}–${(high / GiB).toFixed(1)} GiB`;
}
