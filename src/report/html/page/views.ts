// The views of the page, their keys and their names.

export const VIEWS = [
  { id: 'summary', title: 'Summary' },
  { id: 'timeline', title: 'Timeline' },
  { id: 'flame', title: 'Flame graph' },
  { id: 'groups', title: 'Groups' },
  { id: 'tensors', title: 'Tensors' },
  { id: 'phases', title: 'Phases' },
  { id: 'ranks', title: 'Runs' },
] as const;
export type ViewId = (typeof VIEWS)[number]['id'];
