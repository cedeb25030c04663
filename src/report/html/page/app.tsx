// The page: heading, tabs, the view that is chosen, and the keys.

import { useEffect, useMemo, useReducer } from 'preact/hooks';
import { formatBytes } from '../../../base/bytes.ts';
import type { DeviceModel } from './device_model.ts';
import { FlameView } from './flame_view.tsx';
import { GroupsView } from './groups_view.tsx';
import { phaseTitleAt, tensorRows } from './instant.ts';
import { PhasesView } from './phases_view.tsx';
import { RanksView } from './ranks_view.tsx';
import { changed, type SetState, type State } from './state.ts';
import { SummaryView } from './summary_view.tsx';
import { TensorsView } from './tensors_view.tsx';
import { moved, TimelineView, zoomed } from './timeline_view.tsx';
import { VIEWS, type ViewId } from './views.ts';

export function App({ models }: { readonly models: readonly DeviceModel[] }) {
  const [state, set] = useReducer(changed, models, firstState);
  const model = models[state.device];
  const { document: report } = model.payload;
  const device = report.devices[model.name];
  const rows = useMemo(
    () => tensorRows(model, model.liveAt(state.instant)),
    [model, state.instant],
  );

  useEffect(() => {
    const onKey = (key: KeyboardEvent) => {
      if (handleKey(key, state, set, model)) key.preventDefault();
    };
    window.addEventListener('keydown', onKey);
    return () => window.removeEventListener('keydown', onKey);
  }, [state, model]);

  useEffect(() => {
    const { dataset } = document.documentElement;
    if (state.theme === 'auto') delete dataset.theme;
    else dataset.theme = state.theme;
  }, [state.theme]);

  return (
    <>
      <header class="top">
        <h1>
          memtracker <span class="muted">{model.payload.title}</span>
          {report.predicted ? <span class="badge">predicted</span> : null}
        </h1>
        <div class="tabs" role="tablist">
          {VIEWS.map(({ id, title }, index) => (
            <button
              key={id}
              type="button"
              role="tab"
              aria-selected={state.view === id}
              data-view={id}
              onClick={() => set({ view: id })}
            >
              <kbd>{index + 1}</kbd> {title}
            </button>
          ))}
        </div>
        <div class="tools">
          {models.length > 1 ? (
            <select
              aria-label="Device"
              value={String(state.device)}
              onChange={(event) => set(atDevice(models, Number(event.currentTarget.value)))}
            >
              {models.map(({ name }, index) => (
                <option key={name} value={String(index)}>
                  {name}
                </option>
              ))}
            </select>
          ) : null}
          <button
            type="button"
            onClick={() => set(nextTheme)}
            title="light, dark, or as the system"
          >
            {state.theme === 'auto' ? '◐' : state.theme === 'dark' ? '●' : '○'} <kbd>d</kbd>
          </button>
          <button type="button" onClick={() => set({ help: !state.help })}>
            Keys <kbd>?</kbd>
          </button>
        </div>
      </header>
      {state.view === 'summary' || state.view === 'phases' || state.view === 'ranks' ? null : (
        <InstantBar model={model} state={state} set={set} peak={device.peak.allocated.event ?? 0} />
      )}
      <main>
        {state.view === 'summary' ? (
          <SummaryView document={report} name={model.name} device={device} set={set} />
        ) : null}
        {state.view === 'timeline' ? (
          <TimelineView model={model} report={device} state={state} set={set} />
        ) : null}
        {state.view === 'flame' ? (
          <FlameView model={model} rows={rows} state={state} set={set} />
        ) : null}
        {state.view === 'groups' ? <GroupsView rows={rows} set={set} /> : null}
        {state.view === 'tensors' || state.view === 'timeline' ? (
          <TensorsView model={model} rows={rows} state={state} set={set} />
        ) : null}
        {state.view === 'phases' ? (
          <PhasesView
            model={model}
            phases={report.phases.filter((phase) => phase.device === model.name)}
            set={set}
          />
        ) : null}
        {state.view === 'ranks' ? <RanksView model={model} state={state} set={set} /> : null}
      </main>
      {state.help ? <Help set={set} /> : null}
    </>
  );
}

interface InstantProps {
  readonly model: DeviceModel;
  readonly state: State;
  readonly set: SetState;
  readonly peak: number;
}

function InstantBar({ model, state, set, peak }: InstantProps) {
  const { instant } = state;
  return (
    <div class="instant">
      <button type="button" onClick={() => set(stepped(model, -1))} aria-label="Event before">
        ◀ <kbd>←</kbd>
      </button>
      <button type="button" onClick={() => set(stepped(model, 1))} aria-label="Event after">
        ▶ <kbd>→</kbd>
      </button>
      <button type="button" onClick={() => set(atInstant(model, peak))}>
        Peak <kbd>p</kbd>
      </button>
      <label>
        event{' '}
        <input
          type="number"
          min={0}
          max={model.events - 1}
          value={instant}
          onChange={(event) => set(atInstant(model, Number(event.currentTarget.value)))}
        />
      </label>
      <span>
        {phaseTitleAt(model, instant)}: <strong>{formatBytes(model.allocated[instant])}</strong>{' '}
        allocated
        {instant === peak ? ', the peak' : ''}
      </span>
    </div>
  );
}

const KEYS: readonly (readonly [string, string])[] = [
  ['1 … 7', 'views'],
  ['← →', 'one event back, on'],
  ['Shift ← →', 'one phase back, on'],
  ['p', 'the allocated peak'],
  ['+ − 0', 'zoom in, out, whole run'],
  ['a s', 'move the timeline left, right'],
  ['c', 'timeline up to the capacity'],
  ['f', 'flame graph by module or by stack'],
  ['u', 'one level up in the flame graph'],
  ['/', 'filter'],
  ['d', 'dark, light, as the system'],
  ['Esc', 'close, clear the filter'],
];

function Help({ set }: { readonly set: SetState }) {
  return (
    <dialog open class="help" aria-label="Keys">
      <h2>Keys</h2>
      <dl>
        {KEYS.map(([key, meaning]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={() => set({ help: false })}>
        Close
      </button>
    </dialog>
  );
}

function firstState(models: readonly DeviceModel[]): State {
  return {
    view: 'summary',
    filter: '',
    sort: { column: 'blockBytes', descending: true },
    flameBy: 'module',
    toCapacity: false,
    beside: 0,
    theme: 'auto',
    help: false,
    ...atDevice(models, 0),
  };
}

function atDevice(
  models: readonly DeviceModel[],
  device: number,
): Pick<State, 'device' | 'events' | 'instant' | 'from' | 'to' | 'selected' | 'flamePath'> {
  const { events, name, payload } = models[device];
  return {
    device,
    events,
    instant: payload.document.devices[name].peak.allocated.event ?? 0,
    from: 0,
    to: events - 1,
    selected: null,
    flamePath: [],
  };
}

function atInstant(model: DeviceModel, instant: number): (state: State) => Partial<State> {
  return (state) => {
    const at = Math.min(model.events - 1, Math.max(0, Math.round(instant)));
    const { from, to } = state;
    const inSight = at >= from && at <= to;
    const half = (to - from) / 2;
    return { instant: at, selected: null, ...(inSight ? {} : moved(at - half, at + half, state)) };
  };
}

function stepped(model: DeviceModel, by: number): (state: State) => Partial<State> {
  return (state) => atInstant(model, state.instant + by)(state);
}

/** To the next or the last edge of a phase. */
function steppedPhase(model: DeviceModel, by: number): (state: State) => Partial<State> {
  return (state) => {
    const edges = model.payload.phases.map(({ begin }) => begin);
    const next =
      by > 0
        ? Math.min(...edges.filter((edge) => edge > state.instant))
        : Math.max(...edges.filter((edge) => edge < state.instant));
    return Number.isFinite(next) ? atInstant(model, next)(state) : {};
  };
}

function nextTheme({ theme }: State): Partial<State> {
  return { theme: theme === 'auto' ? 'dark' : theme === 'dark' ? 'light' : 'auto' };
}

/** True when the key was one of ours. */
function handleKey(key: KeyboardEvent, state: State, set: SetState, model: DeviceModel): boolean {
  if (key.ctrlKey || key.metaKey || key.altKey) return false;
  const typing = key.target instanceof HTMLInputElement || key.target instanceof HTMLSelectElement;
  if (key.key === 'Escape') {
    if (typing) (key.target as HTMLElement).blur();
    set(state.help ? { help: false } : { selected: null, filter: '' });
    return true;
  }
  if (typing) return false;
  const view = VIEWS[Number(key.key) - 1];
  if (view !== undefined) {
    set({ view: view.id satisfies ViewId });
    return true;
  }
  const { from, to } = state;
  const shift = (to - from) / 4;
  const actions: Readonly<Record<string, () => void>> = {
    ArrowLeft: () => set(key.shiftKey ? steppedPhase(model, -1) : stepped(model, -1)),
    ArrowRight: () => set(key.shiftKey ? steppedPhase(model, 1) : stepped(model, 1)),
    p: () =>
      set(atInstant(model, model.payload.document.devices[model.name].peak.allocated.event ?? 0)),
    '+': () => set(zoomed(model, 0.5)),
    '=': () => set(zoomed(model, 0.5)),
    '-': () => set(zoomed(model, 2)),
    '0': () => set({ from: 0, to: model.events - 1 }),
    a: () => set(moved(from - shift, to - shift, state)),
    s: () => set(moved(from + shift, to + shift, state)),
    c: () => set({ toCapacity: !state.toCapacity }),
    f: () =>
      set({
        view: 'flame',
        flameBy: state.flameBy === 'module' ? 'stack' : 'module',
        flamePath: [],
      }),
    u: () => set({ flamePath: state.flamePath.slice(0, -1) }),
    '/': () => {
      if (state.view !== 'timeline') set({ view: 'tensors' });
      requestAnimationFrame(() => document.getElementById('filter')?.focus());
    },
    d: () => set(nextTheme),
    '?': () => set({ help: !state.help }),
  };
  const action = actions[key.key];
  if (action === undefined) return false;
  action();
  return true;
}
