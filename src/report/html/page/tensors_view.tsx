// The tensors that are live at the instant: sorted, filtered, and only the rows in sight are in the document.

import {
  elementScroll,
  observeElementOffset,
  observeElementRect,
  Virtualizer,
} from '@tanstack/virtual-core';
import { useEffect, useMemo, useReducer, useRef } from 'preact/hooks';
import { formatBytes } from '../../../base/bytes.ts';
import type { DeviceModel } from './device_model.ts';
import { matching, type TensorRow } from './instant.ts';
import { ownerBackground } from './owner_pattern.ts';
import type { SetState, SortColumn, State } from './state.ts';
import { TensorDetails } from './tensor_details.tsx';

const ROW = 26;

interface Props {
  readonly model: DeviceModel;
  readonly rows: readonly TensorRow[];
  readonly state: State;
  readonly set: SetState;
}

const HEADS: readonly { readonly column: SortColumn; readonly head: string }[] = [
  { column: 'blockBytes', head: 'Block' },
  { column: 'dtype', head: 'Type' },
  { column: 'shape', head: 'Shape' },
  { column: 'owner', head: 'Owner' },
  { column: 'module', head: 'Module' },
  { column: 'op', head: 'Operator' },
  { column: 'site', head: 'Allocated at' },
  { column: 'born', head: 'Born' },
];

export function TensorsView({ model, rows, state, set }: Props) {
  const { filter, sort, selected } = state;
  const scroller = useRef<HTMLDivElement>(null);
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const shown = useMemo(() => sorted(matching(rows, filter), sort), [rows, filter, sort]);
  const bytes = useMemo(() => shown.reduce((sum, row) => sum + row.blockBytes, 0), [shown]);
  const virtualizer = useRef<Virtualizer<HTMLDivElement, HTMLElement> | null>(null);
  const options = {
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW,
    overscan: 12,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => redraw(undefined),
  };
  virtualizer.current ??= new Virtualizer<HTMLDivElement, HTMLElement>(options);
  virtualizer.current.setOptions(options);
  useEffect(() => virtualizer.current?._didMount(), []);
  useEffect(() => virtualizer.current?._willUpdate());
  const chosen = rows.find((row) => row.row === selected);
  return (
    <section class="tensors" aria-label="Tensors">
      <div class="toolbar">
        <input
          id="filter"
          type="search"
          placeholder="filter: activation layers.3 bfloat16 …"
          value={filter}
          onInput={(event) => set({ filter: event.currentTarget.value })}
          aria-label="Filter the tensors"
        />
        <span class="muted" data-test="tensor-count" data-count={shown.length} data-bytes={bytes}>
          {shown.length} of {rows.length} tensors, {formatBytes(bytes)}, at event {state.instant}
        </span>
      </div>
      <div class="split">
        <div ref={scroller} class="scroller" data-test="tensors">
          <div class="table-row head">
            {HEADS.map(({ column, head }) => (
              <button
                key={column}
                type="button"
                class={`column-${column}`}
                aria-pressed={sort.column === column}
                onClick={() =>
                  set({
                    sort: {
                      column,
                      descending:
                        sort.column === column ? !sort.descending : column === 'blockBytes',
                    },
                  })
                }
              >
                {head} {sort.column === column ? (sort.descending ? '▼' : '▲') : ''}
              </button>
            ))}
          </div>
          <div style={{ height: `${virtualizer.current.getTotalSize()}px`, position: 'relative' }}>
            {virtualizer.current.getVirtualItems().map((item) => {
              const row = shown[item.index];
              if (row === undefined) return null;
              return (
                <button
                  key={row.row}
                  type="button"
                  class={row.row === selected ? 'table-row selected' : 'table-row'}
                  style={{ transform: `translateY(${item.start}px)` }}
                  onClick={() => set({ selected: row.row === selected ? null : row.row })}
                  data-bytes={row.blockBytes}
                  data-storage={row.storage}
                >
                  <span class="column-blockBytes number">{formatBytes(row.blockBytes)}</span>
                  <span class="column-dtype">{row.dtype}</span>
                  <span class="column-shape">{row.shape}</span>
                  <span class="column-owner">
                    <span class="swatch" style={{ background: ownerBackground(row.owner) }} />
                    {row.ownerTitle}
                  </span>
                  <span class="column-module">{row.module === '' ? '(root)' : row.module}</span>
                  <span class="column-op">{row.op}</span>
                  <span class="column-site">{row.site}</span>
                  <span class="column-born">{row.bornPhase}</span>
                </button>
              );
            })}
          </div>
        </div>
        {chosen === undefined ? null : <TensorDetails model={model} row={chosen} set={set} />}
      </div>
    </section>
  );
}

function sorted(rows: readonly TensorRow[], { column, descending }: State['sort']): TensorRow[] {
  const sign = descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [a[column], b[column]];
    if (typeof x === 'number' && typeof y === 'number') return sign * (x - y) || a.row - b.row;
    return sign * String(x).localeCompare(String(y)) || b.blockBytes - a.blockBytes;
  });
}
