// Several runs: the ranks of one job, or two variations. Peaks beside each other, and one run drawn over the other.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import { formatBytes } from '../../../base/bytes.ts';
import { MEMORY_KINDS } from '../../../timeline/timeline.ts';
import type { DeviceReport, ReportDocument } from '../../document_schema.ts';
import { formatDelta } from '../../words.ts';
import { AXIS_WIDTH, byteSplits, chartTheme, RIGHT_GAP } from './chart_theme.ts';
import type { DeviceModel } from './device_model.ts';
import type { SetState, State } from './state.ts';

interface Props {
  readonly model: DeviceModel;
  readonly state: State;
  readonly set: SetState;
}

export function RanksView({ model, state, set }: Props) {
  const { payload } = model;
  const first = payload.document.devices[model.name];
  const runs: readonly {
    title: string;
    document: ReportDocument;
    device: DeviceReport | undefined;
  }[] = [
    { ...payload, device: first },
    ...payload.beside.map((other) => {
      const name = other.devices.find(({ beside }) => beside === model.name)?.name;
      return { ...other, device: name === undefined ? undefined : other.document.devices[name] };
    }),
  ];
  const peaks = runs.map(({ device }) => device?.peak);
  const largest = Math.max(
    1,
    ...peaks.map((peak) => peak?.resident.bytes ?? peak?.reserved.bytes ?? 0),
  );
  return (
    <section aria-label="Ranks and runs">
      <table data-test="ranks">
        <thead>
          <tr>
            <th>Run</th>
            <th class="number">Rank</th>
            {MEMORY_KINDS.map((kind) => (
              <th key={kind} class="number">
                {kind}
              </th>
            ))}
            <th class="number">of GPU</th>
            <th>Allocated peak in</th>
            <th class="wide">Resident</th>
          </tr>
        </thead>
        <tbody>
          {runs.map(({ title, document, device }, index) => {
            const whole = device?.peak.resident.bytes ?? device?.peak.reserved.bytes ?? 0;
            return (
              <tr key={title + String(index)}>
                <td>
                  {index === 0 ? <strong>{title}</strong> : title}
                  {device?.out_of_memory ? <span class="badge">✖ out of memory</span> : null}
                </td>
                <td class="number">{document.run.rank}</td>
                {MEMORY_KINDS.map((kind) => {
                  const bytes = device?.peak[kind].bytes ?? null;
                  const base = first?.peak[kind].bytes ?? null;
                  return (
                    <td key={kind} class="number" data-bytes={bytes ?? ''} data-kind={kind}>
                      {bytes === null ? 'unknown' : formatBytes(bytes)}
                      {index > 0 && bytes !== null && base !== null ? (
                        <small>{formatDelta(bytes - base)}</small>
                      ) : null}
                    </td>
                  );
                })}
                <td class="number">
                  {device?.percent_of_capacity == null ? '–' : `${device.percent_of_capacity} %`}
                </td>
                <td class="path">{device?.peak.allocated.phase ?? ''}</td>
                <td class="bar-cell">
                  <span class="bar plain" style={{ width: `${(100 * whole) / largest}%` }} />
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {payload.beside.length === 0 ? (
        <p class="muted">
          Only this run is in the page. Others (more ranks of the job, another configuration) come
          in with <code>memtracker report RUN --html FILE --beside OTHER</code>.
        </p>
      ) : (
        <Overlay model={model} state={state} set={set} />
      )}
    </section>
  );
}

function Overlay({ model, state, set }: Props) {
  const { beside } = model.payload;
  const other = beside[Math.min(state.beside, beside.length - 1)];
  const curve = other.devices.find(({ beside: name }) => name === model.name);
  const [aligned, setAligned] = useState(true);
  const host = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = host.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, []);
  const data = useMemo(() => {
    const own = model.sample(0, model.events - 1, 700);
    const take = (series: Float64Array) => Array.from(own, (event) => series[event]);
    const mine = [Array.from(own), take(model.allocated), take(model.reserved)];
    if (curve === undefined) return uPlot.join([mine as uPlot.AlignedData]);
    const xs = aligned ? increasing(curve.alignedEvent) : [...curve.event];
    const theirs = [xs, [...curve.allocated], [...curve.reserved]];
    return uPlot.join([mine, theirs] as uPlot.AlignedData[]);
  }, [model, curve, aligned]);
  useEffect(() => {
    const element = host.current;
    if (element === null || width === 0) return;
    const plot = new uPlot(overlayOptions(width, curve !== undefined), data, element);
    return () => plot.destroy();
  }, [data, width, state.theme]);
  return (
    <>
      <h2>One over the other</h2>
      <div class="toolbar">
        <label>
          Other run{' '}
          <select
            value={String(beside.indexOf(other))}
            onChange={(event) => set({ beside: Number(event.currentTarget.value) })}
          >
            {beside.map(({ title }, index) => (
              <option key={title + String(index)} value={String(index)}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          <input
            type="checkbox"
            checked={aligned}
            onChange={(event) => setAligned(event.currentTarget.checked)}
          />
          lay matching phases over each other
        </label>
      </div>
      <div ref={host} class="plot" data-test="overlay" />
      <ul class="legend-row">
        <li>
          <span class="stroke first" /> allocated, this run
        </li>
        <li>
          <span class="stroke first thin" /> reserved, this run
        </li>
        <li>
          <span class="stroke second" /> allocated, {other.title}
        </li>
        <li>
          <span class="stroke second thin" /> reserved, {other.title}
        </li>
      </ul>
    </>
  );
}

/** uPlot.join wants every x once and in order; events laid on one point stay beside each other. */
function increasing(values: readonly number[]): number[] {
  const result: number[] = [];
  for (const value of values) {
    const last = result[result.length - 1];
    result.push(last !== undefined && value <= last ? last + 1e-6 : value);
  }
  return result;
}

function overlayOptions(width: number, both: boolean): uPlot.Options {
  const theme = chartTheme();
  const steps = uPlot.paths.stepped?.({ align: 1 });
  const axis = { stroke: theme.text, grid: { stroke: theme.grid }, ticks: { stroke: theme.grid } };
  const line = (
    label: string,
    stroke: string,
    lineWidth: number,
    dash: number[],
  ): uPlot.Series => ({
    label,
    stroke,
    width: lineWidth,
    dash,
    spanGaps: true,
    points: { show: false },
    ...(steps === undefined ? {} : { paths: steps }),
  });
  return {
    width,
    height: 320,
    legend: { show: false },
    padding: [8, RIGHT_GAP, 0, 0],
    scales: { x: { time: false } },
    axes: [
      { ...axis, label: 'event of this run', labelSize: 22 },
      {
        ...axis,
        size: AXIS_WIDTH,
        values: (_plot, splits) => splits.map((value) => formatBytes(value)),
        splits: (_plot, _index, min, max) => byteSplits(min, max),
      },
    ],
    series: [
      {},
      line('allocated', theme.accent, 2, []),
      line('reserved', theme.accent, 1, []),
      ...(both
        ? [line('allocated', theme.warning, 2, [6, 4]), line('reserved', theme.warning, 1, [6, 4])]
        : []),
    ],
  };
}
