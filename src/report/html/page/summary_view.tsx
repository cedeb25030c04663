// The answer: the peaks, what held them, what is outside the allocator, and what is not known.

import { formatBytes } from '../../../base/bytes.ts';
import { MEMORY_KINDS } from '../../../timeline/timeline.ts';
import type { DeviceReport, ReportDocument } from '../../document_schema.ts';
import { formatPercent } from '../../words.ts';
import { ownerBackground } from './owner_pattern.ts';
import type { SetState } from './state.ts';

interface Props {
  readonly document: ReportDocument;
  readonly name: string;
  readonly device: DeviceReport;
  readonly set: SetState;
}

export function SummaryView({ document, name, device, set }: Props) {
  const { peak, capacity, out_of_memory: full, at_peak: at } = device;
  const whole = peak.resident.bytes ?? peak.reserved.bytes ?? 0;
  return (
    <section class="summary" aria-label="Summary">
      <p class="answer">
        {name} of rank {document.run.rank} peaks at{' '}
        <strong data-figure="whole" data-bytes={whole}>
          {formatBytes(whole)}
        </strong>
        {peak.resident.bytes === null ? ' reserved' : ''}
        {capacity === null
          ? ''
          : `, ${device.percent_of_capacity} % of ${capacity.name} (${formatBytes(capacity.usable_bytes)})`}
      </p>
      {document.predicted ? (
        <p class="muted">
          Predicted without a GPU from a traced run; allocator {device.evidence.allocator}, memory
          outside it {device.evidence.external}.
          {device.resident_range.low !== null && device.resident_range.high !== null
            ? ` With what is uncertain: ${formatBytes(device.resident_range.low)} to ${formatBytes(device.resident_range.high)}.`
            : ''}
        </p>
      ) : (
        <p class="muted">Measured on a GPU.</p>
      )}
      {full === null ? null : (
        <p class="warning">
          ✖ Does not fit: out of memory in {full.phase} (event {full.event}), where{' '}
          {formatBytes(full.requested_bytes)} are asked for. The figures are what the whole run
          needs on a larger device.
        </p>
      )}
      <div class="columns">
        <table data-test="peaks">
          <caption>Peaks</caption>
          <thead>
            <tr>
              <th>Memory</th>
              <th class="number">Peak</th>
              <th class="number">of GPU</th>
              <th>in phase</th>
              <th class="number">event</th>
            </tr>
          </thead>
          <tbody>
            {MEMORY_KINDS.map((kind) => {
              const { bytes, phase, event } = peak[kind];
              return (
                <tr key={kind}>
                  <td>{kind}</td>
                  <td class="number" data-kind={kind} data-bytes={bytes ?? ''}>
                    {bytes === null ? 'unknown' : formatBytes(bytes)}
                  </td>
                  <td class="number">
                    {bytes === null || capacity === null
                      ? '–'
                      : formatPercent(bytes, capacity.usable_bytes)}
                  </td>
                  <td class="path">{phase ?? ''}</td>
                  <td class="number">
                    {event === null ? null : (
                      <button
                        type="button"
                        class="link"
                        onClick={() => set({ view: 'timeline', instant: event })}
                      >
                        {event}
                      </button>
                    )}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
        <table data-test="owners">
          <caption>
            Owners at the peak of {at.kind}: {formatBytes(at.allocated)}
          </caption>
          <thead>
            <tr>
              <th>Owner</th>
              <th class="number">Bytes</th>
              <th class="number">Share</th>
              <th class="number">Blocks</th>
            </tr>
          </thead>
          <tbody>
            {at.owners.map(({ owner, pass, title, bytes, blocks }) => (
              <tr key={title}>
                <td>
                  <span class="swatch" style={{ background: ownerBackground(owner) }} />
                  <button
                    type="button"
                    class="link"
                    onClick={() =>
                      set({
                        view: 'tensors',
                        instant: at.event,
                        filter: pass === 'none' ? owner : `${owner} ${pass}`,
                      })
                    }
                  >
                    {title}
                  </button>
                </td>
                <td class="number" data-owner={title} data-bytes={bytes}>
                  {formatBytes(bytes)}
                </td>
                <td class="number">{formatPercent(bytes, at.allocated)}</td>
                <td class="number">{blocks}</td>
              </tr>
            ))}
          </tbody>
        </table>
        <table>
          <caption>Modules at the peak, repeated ones together</caption>
          <thead>
            <tr>
              <th>Module</th>
              <th class="number">×</th>
              <th class="number">Own</th>
              <th class="number">With children</th>
            </tr>
          </thead>
          <tbody>
            {at.repeated_modules.slice(0, 12).map((module) => (
              <tr key={module.name}>
                <td class="path">{module.name === '' ? '(root)' : module.name}</td>
                <td class="number">{module.count}</td>
                <td class="number">{formatBytes(module.own.bytes)}</td>
                <td class="number">{formatBytes(module.with_children.bytes)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {device.external.length === 0 ? null : (
          <table>
            <caption>Outside the allocator</caption>
            <thead>
              <tr>
                <th>Component</th>
                <th class="number">Bytes</th>
                <th>Evidence</th>
              </tr>
            </thead>
            <tbody>
              {device.external.map((part) => (
                <tr key={part.name} title={part.provenance}>
                  <td>{part.name}</td>
                  <td class="number">
                    {part.bytes === null ? 'unknown' : formatBytes(part.bytes)}
                  </td>
                  <td>{part.evidence}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </div>
      <Caveats document={document} device={device} />
    </section>
  );
}

function Caveats({ document, device }: Pick<Props, 'document' | 'device'>) {
  const { faults, errors } = document.integrity;
  const lines = [
    ...device.notes,
    ...faults.map((fault) => `Incomplete: ${fault}.`),
    ...errors.map(({ cause }) => `The training code failed: ${cause}`),
    ...device.growth.map(
      ({ per, bytes_each, operator, module }) =>
        `Grows by ${formatBytes(Math.round(bytes_each))} each ${per.replace('_', '-')}: ${operator} in ${module === '' ? '(no module)' : module}.`,
    ),
    ...document.coverage.map(
      ({ name, detail, assumption, count }) =>
        `Not covered, or assumed: ${name}${count > 1 ? ` ×${count}` : ''}. ${[detail, assumption].filter(Boolean).join('; ')}`,
    ),
  ];
  if (lines.length === 0) return null;
  return (
    <>
      <h2>What to know</h2>
      <ul class="caveats">
        {lines.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </>
  );
}
