// Phases over the timeline, one row a depth. A click zooms to the phase.

import { useEffect, useRef } from 'preact/hooks';
import type { PhasePayload } from '../payload.ts';
import { AXIS_WIDTH, chartTheme, RIGHT_GAP } from './chart_theme.ts';
import type { DeviceModel } from './device_model.ts';
import type { SetState } from './state.ts';

const ROW = 18;
const MAX_ROWS = 5;

interface Props {
  readonly model: DeviceModel;
  readonly from: number;
  readonly to: number;
  readonly width: number;
  readonly set: SetState;
  readonly theme: string;
}

export function PhaseBand({ model, from, to, width, set, theme }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { phases } = model.payload;
  const rows = Math.min(MAX_ROWS, Math.max(1, ...phases.map(({ depth }) => depth + 1)));
  const height = rows * ROW;
  const x = (event: number) =>
    AXIS_WIDTH + ((event - from) / Math.max(1, to - from)) * (width - AXIS_WIDTH - RIGHT_GAP);

  useEffect(() => {
    const context = canvas.current?.getContext('2d');
    if (context === null || context === undefined || width === 0) return;
    const { text, grid, background } = chartTheme();
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.save();
    context.beginPath();
    context.rect(AXIS_WIDTH, 0, width - AXIS_WIDTH - RIGHT_GAP, height);
    context.clip();
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    phases.forEach((phase, index) => {
      if (phase.depth >= rows || phase.end < from || phase.begin > to) return;
      const left = x(phase.begin);
      const right = x(phase.end);
      const top = phase.depth * ROW;
      context.fillStyle = index % 2 === 0 ? grid : background;
      context.fillRect(left, top, Math.max(0.5, right - left), ROW - 1);
      if (right - left < 3) return;
      context.strokeStyle = text;
      context.lineWidth = 0.5;
      context.strokeRect(left + 0.5, top + 0.5, right - left - 1, ROW - 2);
      const visibleLeft = Math.max(left, AXIS_WIDTH);
      const room = Math.min(right, width - RIGHT_GAP) - visibleLeft - 6;
      const label = fitted(context, phase.own, room);
      if (label === '') return;
      context.fillStyle = text;
      context.fillText(label, visibleLeft + 3, top + ROW / 2);
    });
    context.restore();
  }, [model, from, to, width, theme, height]);

  const at = (mouse: MouseEvent): PhasePayload | undefined => {
    const box = canvas.current?.getBoundingClientRect();
    if (box === undefined) return undefined;
    const depth = Math.floor((mouse.clientY - box.top) / ROW);
    const share = (mouse.clientX - box.left - AXIS_WIDTH) / (width - AXIS_WIDTH - RIGHT_GAP);
    const event = from + share * (to - from);
    return phases.find(
      (phase) => phase.depth === depth && phase.begin <= event && phase.end >= event,
    );
  };
  return (
    <canvas
      ref={canvas}
      class="phase-band"
      width={width * devicePixelRatio}
      height={height * devicePixelRatio}
      style={{ width: `${width}px`, height: `${height}px` }}
      role="img"
      aria-label="Phases of the events in sight; the Phases view lists them"
      onMouseMove={(mouse) => {
        const phase = at(mouse);
        mouse.currentTarget.title =
          phase === undefined ? '' : `${phase.title}: events ${phase.begin}–${phase.end}`;
      }}
      onClick={(mouse) => {
        const phase = at(mouse);
        if (phase !== undefined)
          set({ from: phase.begin, to: Math.max(phase.begin + 8, phase.end) });
      }}
    />
  );
}

/** As much of a label as fits; nothing when it would be a stump. */
function fitted(context: CanvasRenderingContext2D, label: string, room: number): string {
  if (room < 14) return '';
  if (context.measureText(label).width <= room) return label;
  let length = Math.floor((label.length * room) / context.measureText(label).width);
  while (length > 1 && context.measureText(`${label.slice(0, length)}…`).width > room) length--;
  return length > 1 ? `${label.slice(0, length)}…` : '';
}
