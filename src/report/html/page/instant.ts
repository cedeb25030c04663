// What was live at one event, grouped for the views: the rows of the table, the tree of the flame graph, the groups of modules.

import { NO_MODULE } from '../../../attribution/attribution.ts';
import { frameText, isLibraryFrame, isOwnFrame } from '../../../attribution/frames.ts';
import { repeatedName } from '../../../attribution/module_name.ts';
import type { Owner, Pass } from '../../../protocol/events.ts';
import { PASSES } from '../../../protocol/events.ts';
import { ownerTitle } from '../../words.ts';
import type { Block, DeviceModel } from './device_model.ts';
import { ownerAt } from './owner_pattern.ts';

/** One live tensor with its texts, ready to be shown, sorted and searched. */
export interface TensorRow {
  readonly row: number;
  readonly storage: number;
  readonly bytes: number;
  readonly blockBytes: number;
  readonly dtype: string;
  readonly layout: string;
  readonly shape: string;
  readonly owner: Owner;
  readonly ownerName: string;
  readonly op: string;
  readonly module: string;
  readonly className: string;
  readonly pass: Pass;
  readonly site: string;
  readonly stack: number;
  readonly stream: number;
  readonly born: number;
  /** First event without it; Infinity when it outlives the run. */
  readonly end: number;
  readonly bornPhase: string;
  /** As reports name it: a tensor that nobody claims is told by what the module was doing. */
  readonly ownerTitle: string;
}

export interface Frame {
  readonly file: string;
  readonly function: string;
  readonly line: number;
}

/** Frames of a stack, innermost first. */
export function framesOf(model: DeviceModel, stack: number): Frame[] {
  const frames: Frame[] = [];
  for (let node = stack; node !== 0; ) {
    const [parent, file, name, line] = model.payload.stacks[node];
    frames.push({ file: model.string(file), function: model.string(name), line });
    node = parent;
  }
  return frames;
}

export function tensorRows(model: DeviceModel, live: readonly Block[]): TensorRow[] {
  const { columns, payload } = model;
  const sites = new Map<number, string>();
  return live.map(({ row, owner, ownerName }) => {
    const tensor = payload.tensors[columns.tensor[row]];
    const stack = columns.stack[row];
    let site = sites.get(stack);
    if (site === undefined) {
      site = siteOf(framesOf(model, stack));
      sites.set(stack, site);
    }
    const module = payload.modules[columns.module[row]];
    const pass = PASSES[columns.pass[row]] ?? 'none';
    const category = ownerAt(owner);
    return {
      row,
      storage: columns.storage[row],
      bytes: model.requested[row],
      blockBytes: model.size[row],
      dtype: tensor.dtype,
      layout: tensor.layout,
      shape: tensor.dtype === '' ? '' : `[${tensor.shape.join(', ')}]`,
      owner: category,
      ownerTitle: ownerTitle({
        owner: category,
        pass: category === 'unattributed' ? pass : 'none',
      }),
      ownerName: model.string(ownerName),
      op: model.string(columns.op[row]),
      module: columns.module[row] === 0 ? NO_MODULE : module.name,
      className: module.className,
      pass,
      site,
      stack,
      stream: columns.stream[row],
      born: model.born[row],
      end: model.end[row],
      bornPhase: phaseTitleAt(model, model.born[row]),
    };
  });
}

/** Title of the innermost phase during an event. */
export function phaseTitleAt(model: DeviceModel, event: number): string {
  return model.payload.phases[model.phase[event] - 1]?.title ?? '(outside every phase)';
}

function siteOf(frames: readonly Frame[]): string {
  const frame = frames.find((candidate) => !isLibraryFrame(candidate)) ?? frames[0];
  return frameText(frame);
}

/** Rows that hold every word of the filter somewhere in their texts. */
export function matching(rows: readonly TensorRow[], filter: string): TensorRow[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [...rows];
  return rows.filter((row) => {
    const text =
      `${row.owner} ${row.ownerTitle} ${row.ownerName} ${row.op} ${row.module} ${repeatedName(row.module)} ${row.className} ${row.pass} ${row.dtype} ${row.shape} ${row.site} ${row.bornPhase}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

export interface TreeNode {
  readonly name: string;
  /** Bytes of the node itself, without its children. */
  own: number;
  readonly children: Map<string, TreeNode>;
}

/** Bytes by module: one level for each part of the name. */
export function moduleTree(rows: readonly TensorRow[]): TreeNode {
  const root = node('all');
  for (const row of rows) {
    const path =
      row.module === NO_MODULE
        ? [NO_MODULE]
        : ['(root)', ...row.module.split('.').filter((part) => part !== '')];
    add(root, [...path, row.owner.replaceAll('_', ' ')], row.blockBytes);
  }
  return root;
}

/** Bytes by Python stack, outermost frame first, the operator last. */
export function stackTree(model: DeviceModel, rows: readonly TensorRow[]): TreeNode {
  const root = node('all');
  const paths = new Map<number, string[]>();
  for (const row of rows) {
    let path = paths.get(row.stack);
    if (path === undefined) {
      path = framesOf(model, row.stack)
        .reverse()
        .filter((frame) => !isOwnFrame(frame))
        .map(frameText);
      paths.set(row.stack, path);
    }
    add(root, [...path, row.op], row.blockBytes);
  }
  return root;
}

function node(name: string): TreeNode {
  return { name, own: 0, children: new Map() };
}

function add(root: TreeNode, path: readonly string[], bytes: number): void {
  let at = root;
  for (const name of path) {
    let child = at.children.get(name);
    if (child === undefined) {
      child = node(name);
      at.children.set(name, child);
    }
    at = child;
  }
  at.own += bytes;
}
