// Phases with what was there before, after, and at the peak inside. A click goes to the peak.

import { useState } from 'preact/hooks';
import { formatBytes } from '../../../base/bytes.ts';
import { MEMORY_KINDS, type MemoryKind } from '../../../timeline/timeline.ts';
import type { PhaseReport } from '../../document_schema.ts';
import { formatDelta } from '../../words.ts';
import type { DeviceModel } from './device_model.ts';
import { repeatedRuns } from './phase_runs.ts';
import type { SetState } from './state.ts';

interface Props {
  readonly model: DeviceModel;
  readonly phases: readonly PhaseReport[];
  readonly set: SetState;
}

export function PhasesView({ model, phases, set }: Props) {
  const [kind, setKind] = useState<MemoryKind>('allocated');
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  const rows = repeatedRuns(phases);
  const largest = Math.max(1, ...phases.map(({ peak }) => peak[kind].bytes ?? 0));
  return (
    <section aria-label="Phases">
      <div class="toolbar">
        <label>
          Memory{' '}
          <select
            value={kind}
            onChange={(event) => setKind(event.currentTarget.value as MemoryKind)}
          >
            {MEMORY_KINDS.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <span class="muted">Repeated phases are folded; a click on a phase goes to its peak.</span>
      </div>
      <table class="phases" data-test="phases">
        <thead>
          <tr>
            <th>Phase</th>
            <th class="number">Before</th>
            <th class="number">After</th>
            <th class="number">Delta</th>
            <th class="number">Peak</th>
            <th class="number">at event</th>
            <th class="wide" />
          </tr>
        </thead>
        <tbody>
          {rows.flatMap(({ index, folded }) => {
            const shown = folded.length > 0 && !open.has(index) ? [index] : [index, ...folded];
            return shown.map((at) => {
              const phase = phases[at];
              const { before, after, peak } = phase;
              const { bytes, event } = peak[kind];
              const delta =
                before[kind] === null || after[kind] === null ? null : after[kind] - before[kind];
              const title = model.payload.phases.find(({ begin }) => begin === phase.begin_event);
              return (
                <tr key={at}>
                  <td style={{ paddingLeft: `${0.5 + phase.depth * 1.2}rem` }}>
                    <button
                      type="button"
                      class="link"
                      disabled={event === null}
                      onClick={() => {
                        if (event === null) return;
                        set({
                          view: 'timeline',
                          instant: event,
                          from: phase.begin_event,
                          to: Math.max(phase.begin_event + 8, phase.end_event),
                        });
                      }}
                    >
                      {title?.own ?? phase.path}
                    </button>
                    {folded.length > 0 && at === index ? (
                      <button
                        type="button"
                        class="fold"
                        onClick={() =>
                          setOpen((before) => {
                            const next = new Set(before);
                            if (!next.delete(index)) next.add(index);
                            return next;
                          })
                        }
                      >
                        {open.has(index) ? 'fold' : `${folded.length} more like it`}
                      </button>
                    ) : null}
                  </td>
                  <td class="number">{known(before[kind])}</td>
                  <td class="number">{known(after[kind])}</td>
                  <td class="number">{delta === null ? 'unknown' : formatDelta(delta)}</td>
                  <td class="number" data-bytes={bytes ?? ''} data-phase={phase.path}>
                    {known(bytes)}
                  </td>
                  <td class="number">{event ?? ''}</td>
                  <td class="bar-cell">
                    <span
                      class="bar plain"
                      style={{ width: `${(100 * (bytes ?? 0)) / largest}%` }}
                    />
                  </td>
                </tr>
              );
            });
          })}
        </tbody>
      </table>
    </section>
  );
}

function known(bytes: number | null): string {
  return bytes === null ? 'unknown' : formatBytes(bytes);
}
