// Which run a report is about: three blocks that are easily taken for one.

import { createHash } from 'node:crypto';
import { MODELLED_ALLOCATOR } from '../allocator/caching_allocator.ts';
import type { Analysis } from '../attribution/analysis.ts';
import { declaredNccl } from '../device/trace_device.ts';
import { DEFAULT_RELEASE } from '../nccl/release.ts';
import type { ReportDocument } from './document_schema.ts';

export type ReportIdentity = ReportDocument['run']['identity'];

/**
 * Three things that are easily taken for one: what the job will run on as its owner declares it, what ran here, and what the
 * replay models.
 */
export function identityOf({ trace, options }: Analysis): ReportIdentity {
  const { header } = trace;
  const config = trace.run.get('config');
  const versions = trace.run.get('versions');
  return {
    target: header.target ?? null,
    simulator: {
      memtracker: header.memtracker,
      pytorch: text(versions?.torch),
      python: text(versions?.python),
      adapter_sha256: text(header.source.adapter_sha256),
      sidecar_sha256: text(header.source.sidecar_sha256),
      config_sha256:
        config === undefined
          ? null
          : createHash('sha256').update(JSON.stringify(config)).digest('hex'),
    },
    modelled: {
      allocator: MODELLED_ALLOCATOR,
      nccl: options.ncclVersion ?? declaredNccl(header) ?? DEFAULT_RELEASE.version,
      gpu: options.gpu ?? header.gpu.id,
    },
  };
}

function text(value: unknown): string | null {
  return typeof value === 'string' ? value : null;
}

/** The blocks in words, a line each. */
export function identityLines(analysis: Analysis): string[] {
  const { target, simulator, modelled } = identityOf(analysis);
  const { nccl, gpu, allocator } = modelled;
  return [
    `Target: ${targetText(target)}`,
    `Ran with: memtracker ${simulator.memtracker}, torch ${simulator.pytorch ?? 'unknown'}, Python ${simulator.python ?? 'unknown'}`,
    `Models: ${allocator}, NCCL ${nccl}, ${gpu}`,
  ];
}

/** `nccl 2.27.5, cuda 12.8 (assumed)`; components that nobody named are left out. */
function targetText(target: ReportIdentity['target']): string {
  const named = Object.entries(target ?? {}).flatMap(([name, entry]) => {
    const { value, evidence } = (entry ?? {}) as { value?: unknown; evidence?: unknown };
    if (typeof value !== 'string') return [];
    return [`${name} ${value}${evidence === 'assumed' ? ' (assumed)' : ''}`];
  });
  return named.length === 0 ? 'not declared (memtracker trace --target nccl=…)' : named.join(', ');
}
