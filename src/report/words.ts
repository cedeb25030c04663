// The words of all reports for one thing: so that the same phase, owner or instant reads alike in text, Markdown and HTML.

import type { OwnerShare } from '../attribution/attribution.ts';
import { formatBytes } from '../base/bytes.ts';
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

/** `step[step=1]/optimizer`, with `#2` for the second phase of the same path. `(before any phase)` for none. */
export function phaseTitle(phase: PhaseMeta | undefined): string {
  if (phase === undefined) return '(outside every phase)';
  return phase.occurrence === 0 ? phase.path : `${phase.path}#${phase.occurrence + 1}`;
}

/** The innermost phase that was open during an event. */
export function phaseAt(trace: Trace, event: number): PhaseMeta | undefined {
  return trace.phases[trace.events.phase[event]];
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
