// What charts share: their margins, and their colours, which canvases cannot take from CSS: read from the page's own variables.

/** Room for the numbers of the vertical axis; the phase band keeps the same. */
export const AXIS_WIDTH = 88;
export const RIGHT_GAP = 30;

/** Ticks at round binary sizes. */
export function byteSplits(min: number, max: number): number[] {
  const rough = (max - min) / 6;
  let step = 2 ** Math.floor(Math.log2(Math.max(1, rough)));
  while ((max - min) / step > 8) step *= 2;
  const splits = [];
  for (let value = Math.ceil(min / step) * step; value <= max; value += step) splits.push(value);
  return splits;
}

export interface ChartTheme {
  readonly text: string;
  readonly grid: string;
  readonly background: string;
  readonly accent: string;
  readonly warning: string;
}

export function chartTheme(): ChartTheme {
  const style = getComputedStyle(document.documentElement);
  const value = (name: string) => style.getPropertyValue(name).trim();
  return {
    text: value('--text'),
    grid: value('--line'),
    background: value('--panel'),
    accent: value('--accent'),
    warning: value('--warning'),
  };
}
