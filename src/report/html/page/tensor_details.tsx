// Everything that is known of one tensor.

import { isLibraryFrame } from '../../../attribution/frames.ts';
import { formatBytes } from '../../../base/bytes.ts';
import type { DeviceModel } from './device_model.ts';
import { framesOf, phaseTitleAt, type TensorRow } from './instant.ts';
import type { SetState } from './state.ts';

export function TensorDetails({
  model,
  row,
  set,
}: {
  readonly model: DeviceModel;
  readonly row: TensorRow;
  readonly set: SetState;
}) {
  const forever = row.end === Number.POSITIVE_INFINITY;
  const facts: readonly (readonly [string, string])[] = [
    ['Type', row.dtype === '' ? 'not recorded' : row.dtype],
    ['Shape', row.shape === '' ? 'not recorded' : row.shape],
    ['Layout', row.layout === '' ? 'not recorded' : row.layout],
    ['Requested', `${formatBytes(row.bytes)} (${row.bytes} bytes)`],
    ['Block', `${formatBytes(row.blockBytes)} (${row.blockBytes} bytes)`],
    ['Owner', row.ownerName === '' ? row.ownerTitle : `${row.ownerTitle}: ${row.ownerName}`],
    ['Module', row.module === '' ? '(root)' : row.module],
    ['Class', row.className],
    ['Pass', row.pass],
    ['Operator', row.op],
    ['Stream', row.stream === 0 ? 'default' : String(row.stream)],
    ['Born', `event ${row.born}, ${row.bornPhase}`],
    [
      'Gone',
      forever
        ? 'outlives the run'
        : `event ${row.end}, ${phaseTitleAt(model, Math.min(row.end, model.events - 1))}`,
    ],
    ['Storage', String(row.storage)],
  ];
  const frames = framesOf(model, row.stack);
  return (
    <aside class="details" aria-label="Tensor" data-test="details">
      <header>
        <h2>Tensor</h2>
        <button type="button" aria-label="Close" onClick={() => set({ selected: null })}>
          ✕
        </button>
      </header>
      <dl>
        {facts
          .filter(([, value]) => value !== '')
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
      <div class="toolbar">
        <button type="button" onClick={() => set({ instant: row.born })}>
          Go to its birth
        </button>
        {forever ? null : (
          <button type="button" onClick={() => set({ instant: row.end - 1 })}>
            Go to its last event
          </button>
        )}
      </div>
      <h3>Allocated by</h3>
      {frames.length === 0 ? (
        <p class="muted">no stack was recorded</p>
      ) : (
        <ol class="stack">
          {frames.map((frame, index) => (
            <li key={`${index}`} class={isLibraryFrame(frame) ? 'muted' : ''}>
              {frame.function}
              <br />
              <span class="path">
                {frame.file}:{frame.line}
              </span>
            </li>
          ))}
        </ol>
      )}
    </aside>
  );
}
