// What the person has chosen, and how it changes. One object; views get it and the function that changes it.

import type { ViewId } from './views.ts';

export interface State {
  readonly view: ViewId;
  /** Index of the device. */
  readonly device: number;
  /** The event that all views of one instant show. */
  readonly instant: number;
  /** Events of the device. */
  readonly events: number;
  /** Events in sight on the timeline. */
  readonly from: number;
  readonly to: number;
  readonly filter: string;
  readonly sort: { readonly column: SortColumn; readonly descending: boolean };
  /** Row of the block whose details are open. */
  readonly selected: number | null;
  readonly flameBy: 'module' | 'stack';
  /** Names from the root of the flame graph to the node that fills it. */
  readonly flamePath: readonly string[];
  /** Stretches the timeline to the capacity of the device. */
  readonly toCapacity: boolean;
  /** Which other run is drawn over this one. */
  readonly beside: number;
  readonly theme: 'auto' | 'light' | 'dark';
  readonly help: boolean;
}

export type SortColumn =
  | 'blockBytes'
  | 'dtype'
  | 'shape'
  | 'owner'
  | 'module'
  | 'op'
  | 'site'
  | 'born';

export type Change = Partial<State> | ((state: State) => Partial<State>);
export type SetState = (change: Change) => void;

export function changed(state: State, change: Change): State {
  return { ...state, ...(typeof change === 'function' ? change(state) : change) };
}
