// Memory over the events of the run: allocated as a stack of owners, reserved and resident as lines, the capacity, the place where the
// device was full, phases on top. Drag moves, the wheel zooms, a click chooses the instant.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { formatBytes } from '../../../base/bytes.ts';
import { OWNERS, type Owner } from '../../../protocol/events.ts';
import type { DeviceReport } from '../../document_schema.ts';
import { OWNER_TITLES } from '../../words.ts';
import { AXIS_WIDTH, byteSplits, chartTheme, RIGHT_GAP } from './chart_theme.ts';
import type { DeviceModel } from './device_model.ts';
import { phaseTitleAt } from './instant.ts';
import { ownerBackground, ownerPattern, STACK_ORDER } from './owner_pattern.ts';
import { PhaseBand } from './phase_band.tsx';
import type { SetState, State } from './state.ts';

const HEIGHT = 380;
/** Fewer events than this are not zoomed into. */
const MIN_WINDOW = 8;
/** A press that moves less is a click. */
const CLICK_PIXELS = 4;

interface Props {
  readonly model: DeviceModel;
  readonly report: DeviceReport;
  readonly state: State;
  readonly set: SetState;
}

export function TimelineView({ model, report, state, set }: Props) {
  const { from, to, instant } = state;
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [width, setWidth] = useState(0);
  const owners = useMemo(() => ownersOf(model), [model]);
  const latest = useRef({ state, set, report, owners });
  latest.current = { state, set, report, owners };

  useEffect(() => {
    const element = host.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);

  const buckets = Math.max(100, Math.floor((width - AXIS_WIDTH) / 4));
  const data = useMemo(
    () => plotData(model, owners, from, to, buckets),
    [model, owners, from, to, buckets],
  );

  // A new plot only for another device, size or theme; panning and zooming give the same plot new data.
  useEffect(() => {
    const element = host.current;
    if (element === null || width === 0) return;
    const made = new uPlot(
      plotOptions(width, owners, report.peak.resident.bytes !== null, latest),
      data,
      element,
    );
    plot.current = made;
    const stop = interact(made, latest);
    return () => {
      stop();
      made.destroy();
      plot.current = null;
    };
  }, [model, owners, width, state.theme]);

  useEffect(() => {
    const made = plot.current;
    if (made === null) return;
    made.batch(() => {
      made.setData(data, false);
      made.setScale('x', { min: from, max: to });
      const { low, high } = verticalRange(data, report, state.toCapacity);
      made.setScale('y', { min: low, max: high });
    });
  }, [data, from, to, state.toCapacity, width]);

  useEffect(() => plot.current?.redraw(false), [instant]);

  return (
    <section class="timeline" aria-label="Timeline">
      <div class="toolbar">
        <button type="button" onClick={() => set(zoomed(model, 0.5))}>
          Zoom in <kbd>+</kbd>
        </button>
        <button type="button" onClick={() => set(zoomed(model, 2))}>
          Zoom out <kbd>−</kbd>
        </button>
        <button type="button" onClick={() => set({ from: 0, to: model.events - 1 })}>
          Whole run <kbd>0</kbd>
        </button>
        <label>
          <input
            type="checkbox"
            checked={state.toCapacity}
            onChange={(event) => set({ toCapacity: event.currentTarget.checked })}
          />
          up to the capacity <kbd>c</kbd>
        </label>
        <span class="muted" data-test="window">
          events {Math.round(from)}–{Math.round(to)} of {model.events}
        </span>
      </div>
      <PhaseBand model={model} from={from} to={to} width={width} set={set} theme={state.theme} />
      <div ref={host} class="plot" data-test="plot" />
      <Legend model={model} report={report} owners={owners} instant={instant} />
    </section>
  );
}

function Legend({
  model,
  report,
  owners,
  instant,
}: {
  readonly model: DeviceModel;
  readonly report: DeviceReport;
  readonly owners: readonly Owner[];
  readonly instant: number;
}) {
  const sums = useMemo(() => model.ownerSums(Uint32Array.of(instant)), [model, instant]);
  const external = model.external[instant];
  return (
    <div class="legend">
      <p>
        At event <strong data-test="instant">{instant}</strong>, {phaseTitleAt(model, instant)}:{' '}
        <strong data-test="allocated" data-bytes={model.allocated[instant]}>
          {formatBytes(model.allocated[instant])}
        </strong>{' '}
        allocated, {formatBytes(model.active[instant])} active,{' '}
        {formatBytes(model.reserved[instant])} reserved,{' '}
        {Number.isNaN(external) ? 'unknown' : formatBytes(external)} outside the allocator
        {report.capacity === null ? '' : ` (capacity ${formatBytes(report.capacity.usable_bytes)})`}
        .
      </p>
      <ul>
        {[...owners].reverse().map((owner) => (
          <li key={owner}>
            <span class="swatch" style={{ background: ownerBackground(owner) }} />
            {OWNER_TITLES[owner]}
            <span class="number">{formatBytes(sums[OWNERS.indexOf(owner)])}</span>
          </li>
        ))}
        <li>
          <span class="swatch line-reserved" />
          reserved<span class="number">{formatBytes(model.reserved[instant])}</span>
        </li>
        <li>
          <span class="swatch line-resident" />
          resident
          <span class="number">
            {Number.isNaN(external) ? 'unknown' : formatBytes(model.resident[instant])}
          </span>
        </li>
      </ul>
    </div>
  );
}

/** Owners that ever hold something, bottom of the stack first. */
function ownersOf(model: DeviceModel): Owner[] {
  const used = new Set<number>(model.columns.owner);
  for (const owner of model.columns.changeOwner) used.add(owner);
  return STACK_ORDER.filter((owner) => used.has(OWNERS.indexOf(owner)));
}

/** x, then the stack from its top down (each drawn over the one before), then reserved and resident. */
function plotData(
  model: DeviceModel,
  owners: readonly Owner[],
  from: number,
  to: number,
  buckets: number,
): uPlot.AlignedData {
  const chosen = model.sample(from, to, buckets);
  const sums = model.ownerSums(chosen);
  const count = OWNERS.length;
  const layers = owners.map(() => new Float64Array(chosen.length));
  for (let i = 0; i < chosen.length; i++) {
    let total = 0;
    owners.forEach((owner, layer) => {
      total += sums[i * count + OWNERS.indexOf(owner)];
      layers[layer][i] = total;
    });
  }
  const at = (series: Float64Array) => Float64Array.from(chosen, (event) => series[event]);
  return [
    Float64Array.from(chosen),
    ...layers.reverse(),
    at(model.reserved),
    at(model.resident),
  ] as unknown as uPlot.AlignedData;
}

function verticalRange(
  data: uPlot.AlignedData,
  report: DeviceReport,
  toCapacity: boolean,
): { low: number; high: number } {
  let high = 1;
  for (const values of data.slice(1)) {
    for (const value of values)
      if (value !== null && value !== undefined && value > high) high = value;
  }
  if (toCapacity && report.capacity !== null) high = Math.max(high, report.capacity.usable_bytes);
  return { low: 0, high: high * 1.06 };
}

interface Latest {
  readonly current: {
    readonly state: State;
    readonly set: SetState;
    readonly report: DeviceReport;
    readonly owners: readonly Owner[];
  };
}

function plotOptions(
  width: number,
  owners: readonly Owner[],
  residentKnown: boolean,
  latest: Latest,
): uPlot.Options {
  const theme = chartTheme();
  const { stepped } = uPlot.paths;
  if (stepped === undefined) throw new Error('uPlot without stepped paths');
  const steps = stepped({ align: 1 });
  const axis = { stroke: theme.text, grid: { stroke: theme.grid }, ticks: { stroke: theme.grid } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
    padding: [8, RIGHT_GAP, 0, 0],
    scales: { x: { time: false, auto: false }, y: { auto: false } },
    axes: [
      { ...axis, label: 'event', labelSize: 22 },
      {
        ...axis,
        size: AXIS_WIDTH,
        values: (_plot, splits) => splits.map((value) => formatBytes(value)),
        splits: (_plot, _index, min, max) => byteSplits(min, max),
      },
    ],
    series: [
      {},
      ...[...owners].reverse().map(
        (owner): uPlot.Series => ({
          label: owner,
          paths: steps,
          points: { show: false },
          width: 0,
          fill: (plot) => ownerPattern(owner, plot.ctx) as unknown as string,
        }),
      ),
      {
        label: 'reserved',
        paths: steps,
        points: { show: false },
        stroke: theme.text,
        width: 1.5,
        dash: [6, 3],
      },
      {
        label: 'resident',
        show: residentKnown,
        paths: steps,
        points: { show: false },
        stroke: theme.accent,
        width: 2,
      },
    ],
    hooks: { draw: [(plot) => drawMarks(plot, latest)] },
  };
}

function drawMarks(plot: uPlot, { current: { state, report } }: Latest): void {
  const { ctx, bbox } = plot;
  const theme = chartTheme();
  const unit = devicePixelRatio;
  ctx.save();
  ctx.font = `${12 * unit}px system-ui, sans-serif`;
  /** A label on a ground of its own, readable over any hatching. `x` is its left or right end. */
  const write = (text: string, x: number, y: number, color: string, align: 'left' | 'right') => {
    const wide = ctx.measureText(text).width + 8 * unit;
    ctx.fillStyle = theme.background;
    ctx.fillRect(align === 'left' ? x : x - wide, y - 13 * unit, wide, 17 * unit);
    ctx.fillStyle = color;
    ctx.textAlign = align;
    ctx.fillText(text, x + (align === 'left' ? 4 : -4) * unit, y);
  };
  const right = bbox.left + bbox.width;
  if (report.capacity !== null) {
    const y = plot.valToPos(report.capacity.usable_bytes, 'y', true);
    const label = `capacity ${formatBytes(report.capacity.usable_bytes)} (${report.capacity.name})`;
    if (y >= bbox.top) {
      ctx.strokeStyle = theme.warning;
      ctx.lineWidth = 2 * unit;
      ctx.setLineDash([2 * unit, 4 * unit]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(right, y);
      ctx.stroke();
      write(label, right, y + 17 * unit, theme.warning, 'right');
    } else {
      write(`▲ ${label}`, right, bbox.top + 14 * unit, theme.warning, 'right');
    }
  }
  const mark = (event: number, color: string, label: string, dash: number[]) => {
    if (event < state.from || event > state.to) return;
    const x = plot.valToPos(event, 'x', true);
    ctx.strokeStyle = color;
    ctx.lineWidth = 1.5 * unit;
    ctx.setLineDash(dash.map((length) => length * unit));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const side = x > bbox.left + bbox.width / 2 ? 'right' : 'left';
    const offset = (side === 'left' ? 3 : -3) * unit;
    write(label, x + offset, bbox.top + bbox.height - 6 * unit, color, side);
  };
  if (report.out_of_memory !== null) {
    mark(report.out_of_memory.event, theme.warning, '✖ out of memory', []);
  }
  mark(state.instant, theme.text, `event ${state.instant}`, [4, 3]);
  ctx.restore();
}

/** Drag, wheel and click on the plot. Returns what takes them off again. */
function interact(plot: uPlot, latest: Latest): () => void {
  const { over } = plot;
  let press: { x: number; from: number; to: number; moved: boolean } | null = null;
  const eventAt = (x: number) => plot.posToVal(x - over.getBoundingClientRect().left, 'x');
  const events = () => (plot.data[0] as ArrayLike<number>).length;
  const onDown = (pointer: PointerEvent) => {
    const { from, to } = latest.current.state;
    press = { x: pointer.clientX, from, to, moved: false };
    over.setPointerCapture(pointer.pointerId);
  };
  const onMove = (pointer: PointerEvent) => {
    if (press === null || events() === 0) return;
    const pixels = pointer.clientX - press.x;
    if (!press.moved && Math.abs(pixels) < CLICK_PIXELS) return;
    press.moved = true;
    const { from, to } = press;
    const shift = (-pixels / over.clientWidth) * (to - from);
    latest.current.set((state) => moved(from + shift, to + shift, state));
  };
  const onUp = (pointer: PointerEvent) => {
    if (press !== null && !press.moved) {
      const { from, to } = latest.current.state;
      const at = Math.round(Math.min(to, Math.max(from, eventAt(pointer.clientX))));
      latest.current.set({ instant: at, selected: null });
    }
    press = null;
  };
  const onWheel = (wheel: WheelEvent) => {
    wheel.preventDefault();
    const { from, to } = latest.current.state;
    if (Math.abs(wheel.deltaX) > Math.abs(wheel.deltaY)) {
      const shift = (wheel.deltaX / over.clientWidth) * (to - from);
      latest.current.set((state) => moved(from + shift, to + shift, state));
      return;
    }
    const center = eventAt(wheel.clientX);
    const factor = Math.exp(wheel.deltaY / 400);
    const span = Math.max(MIN_WINDOW, (to - from) * factor);
    const share = (center - from) / Math.max(1, to - from);
    latest.current.set((state) => moved(center - span * share, center + span * (1 - share), state));
  };
  over.addEventListener('pointerdown', onDown);
  over.addEventListener('pointermove', onMove);
  over.addEventListener('pointerup', onUp);
  over.addEventListener('wheel', onWheel, { passive: false });
  return () => {
    over.removeEventListener('pointerdown', onDown);
    over.removeEventListener('pointermove', onMove);
    over.removeEventListener('pointerup', onUp);
    over.removeEventListener('wheel', onWheel);
  };
}

/** A window, kept inside the run. */
export function moved(from: number, to: number, { events }: Pick<State, 'events'>): Partial<State> {
  const last = events - 1;
  const span = Math.min(last, to - from);
  const start = Math.min(Math.max(0, from), last - span);
  return { from: start, to: start + span };
}

/** A window around the instant, or around the middle when the instant is out of sight. */
export function zoomed(model: DeviceModel, factor: number): (state: State) => Partial<State> {
  return (state) => {
    const { from, to, instant } = state;
    const center = instant >= from && instant <= to ? instant : (from + to) / 2;
    const span = Math.max(MIN_WINDOW, Math.min(model.events - 1, (to - from) * factor));
    const share = (center - from) / Math.max(1, to - from);
    return moved(center - span * share, center + span * (1 - share), state);
  };
}
