// How an owner looks: a colour and a hatching, so that areas can be told apart without colour. Colours are Paul Tol's "muted" and
// "light" schemes, made for colour-blind readers (personal.sron.nl/~pault).

import { OWNERS, type Owner } from '../../../protocol/events.ts';

type Hatch = 'plain' | 'rising' | 'falling' | 'level' | 'upright' | 'dots' | 'cross' | 'grid';

interface Look {
  readonly color: string;
  readonly hatch: Hatch;
}

/** From what stays to what comes and goes: the order of the stack, bottom first. */
export const STACK_ORDER: readonly Owner[] = [
  'parameter',
  'main_parameter',
  'buffer',
  'optimizer_state',
  'main_gradient',
  'gradient',
  'gradient_bucket',
  'unsharded_parameter',
  'activation',
  'recompute',
  'communication',
  'workspace',
  'input',
  'other',
  'unattributed',
];

const LOOKS: Readonly<Record<Owner, Look>> = {
  parameter: { color: '#4477aa', hatch: 'plain' },
  main_parameter: { color: '#6699cc', hatch: 'rising' },
  buffer: { color: '#88bbdd', hatch: 'dots' },
  optimizer_state: { color: '#228833', hatch: 'falling' },
  main_gradient: { color: '#aa7744', hatch: 'rising' },
  gradient: { color: '#cc9955', hatch: 'plain' },
  gradient_bucket: { color: '#ddbb77', hatch: 'grid' },
  unsharded_parameter: { color: '#66ccee', hatch: 'cross' },
  activation: { color: '#ee6677', hatch: 'plain' },
  recompute: { color: '#ff99aa', hatch: 'level' },
  communication: { color: '#aa3377', hatch: 'upright' },
  workspace: { color: '#997788', hatch: 'dots' },
  input: { color: '#bbcc33', hatch: 'plain' },
  other: { color: '#999999', hatch: 'falling' },
  unattributed: { color: '#bbbbbb', hatch: 'rising' },
};

export function ownerAt(index: number): Owner {
  return OWNERS[index] ?? 'other';
}

const TILE = 8;
const patterns = new Map<Owner, CanvasPattern>();

export function ownerPattern(owner: Owner, context: CanvasRenderingContext2D): CanvasPattern {
  let pattern = patterns.get(owner);
  if (pattern === undefined) {
    const tile = document.createElement('canvas');
    tile.width = TILE;
    tile.height = TILE;
    const drawing = tile.getContext('2d');
    if (drawing === null) throw new Error('this browser has no canvas');
    paint(drawing, LOOKS[owner]);
    const made = context.createPattern(tile, 'repeat');
    if (made === null) throw new Error('this browser has no canvas patterns');
    pattern = made;
    patterns.set(owner, pattern);
  }
  return pattern;
}

/** The same hatching as a CSS background. */
export function ownerBackground(owner: Owner): string {
  const { color, hatch } = LOOKS[owner];
  const ink = 'rgb(0 0 0 / 0.35)';
  const lines = (angle: string) =>
    `repeating-linear-gradient(${angle}, ${ink} 0 1px, transparent 1px 5px), ${color}`;
  switch (hatch) {
    case 'plain':
      return color;
    case 'rising':
      return lines('-45deg');
    case 'falling':
      return lines('45deg');
    case 'level':
      return lines('0deg');
    case 'upright':
      return lines('90deg');
    case 'dots':
      return `radial-gradient(${ink} 1px, transparent 1.5px) 0 0 / 5px 5px, ${color}`;
    case 'cross':
      return `repeating-linear-gradient(45deg, ${ink} 0 1px, transparent 1px 5px), ${lines('-45deg')}`;
    case 'grid':
      return `repeating-linear-gradient(0deg, ${ink} 0 1px, transparent 1px 5px), ${lines('90deg')}`;
  }
}

function paint(drawing: CanvasRenderingContext2D, { color, hatch }: Look): void {
  drawing.fillStyle = color;
  drawing.fillRect(0, 0, TILE, TILE);
  drawing.strokeStyle = 'rgb(0 0 0 / 0.35)';
  drawing.fillStyle = drawing.strokeStyle;
  drawing.lineWidth = 1;
  const line = (x0: number, y0: number, x1: number, y1: number) => {
    drawing.beginPath();
    drawing.moveTo(x0, y0);
    drawing.lineTo(x1, y1);
    drawing.stroke();
  };
  if (hatch === 'rising' || hatch === 'cross') line(-1, TILE + 1, TILE + 1, -1);
  if (hatch === 'falling' || hatch === 'cross') line(-1, -1, TILE + 1, TILE + 1);
  if (hatch === 'level' || hatch === 'grid') line(0, TILE / 2, TILE, TILE / 2);
  if (hatch === 'upright' || hatch === 'grid') line(TILE / 2, 0, TILE / 2, TILE);
  if (hatch === 'dots') drawing.fillRect(3, 3, 2, 2);
}
