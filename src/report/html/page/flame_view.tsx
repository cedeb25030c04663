// Bytes live at the instant as a flame graph, by module or by Python stack. The layout is d3-hierarchy's partition; the cells are
// buttons, so that they can be reached by keyboard and found with the browser's search.

import { type HierarchyRectangularNode, hierarchy, partition } from 'd3-hierarchy';
import { useMemo } from 'preact/hooks';
import { formatBytes } from '../../../base/bytes.ts';
import type { DeviceModel } from './device_model.ts';
import { moduleTree, stackTree, type TensorRow, type TreeNode } from './instant.ts';
import type { SetState, State } from './state.ts';

const ROW = 22;
/** Cells narrower than this part of the width are left out: they could not be read or hit. */
const MIN_SHARE = 0.0015;
/** Narrower cells have their name as a tooltip only. */
const MIN_LABEL = 0.03;

interface Props {
  readonly model: DeviceModel;
  readonly rows: readonly TensorRow[];
  readonly state: State;
  readonly set: SetState;
}

export function FlameView({ model, rows, state, set }: Props) {
  const { flameBy, flamePath, filter } = state;
  const tree = useMemo(
    () => (flameBy === 'module' ? moduleTree(rows) : stackTree(model, rows)),
    [model, rows, flameBy],
  );
  const cells = useMemo(() => layout(focused(tree, flamePath)), [tree, flamePath]);
  const total = cells[0]?.value ?? 0;
  const depth = Math.max(0, ...cells.map((cell) => cell.depth));
  const words = filter.toLowerCase();
  return (
    <section class="flame" aria-label="Flame graph">
      <div class="toolbar">
        <span role="radiogroup" aria-label="by">
          {(['module', 'stack'] as const).map((by) => (
            <label key={by}>
              <input
                type="radio"
                name="flame-by"
                checked={flameBy === by}
                onChange={() => set({ flameBy: by, flamePath: [] })}
              />
              by {by === 'module' ? 'module' : 'Python stack'}
            </label>
          ))}
        </span>
        <button
          type="button"
          disabled={flamePath.length === 0}
          onClick={() => set({ flamePath: flamePath.slice(0, -1) })}
        >
          Up <kbd>u</kbd>
        </button>
        <button
          type="button"
          disabled={flamePath.length === 0}
          onClick={() => set({ flamePath: [] })}
        >
          All
        </button>
        <span class="muted">
          {['all', ...flamePath].join(' › ')}: {formatBytes(total)}
        </span>
      </div>
      <div
        class="flame-cells"
        data-test="flame"
        style={{ height: `${(depth + 1) * ROW}px` }}
        data-bytes={total}
      >
        {cells.map((cell) => {
          const bytes = cell.value ?? 0;
          const path = pathOf(cell);
          const label = `${cell.data.name}: ${formatBytes(bytes)}, ${((100 * bytes) / Math.max(1, total)).toFixed(1)} %`;
          const hit = words !== '' && cell.data.name.toLowerCase().includes(words);
          return (
            <button
              key={path.join('\n')}
              type="button"
              class={hit ? 'cell hit' : 'cell'}
              title={label}
              aria-label={label}
              style={{
                left: `${cell.x0 * 100}%`,
                width: `${(cell.x1 - cell.x0) * 100}%`,
                top: `${cell.depth * ROW}px`,
                background: shade(cell.data.name),
              }}
              onClick={() => set({ flamePath: [...flamePath, ...path] })}
            >
              {cell.x1 - cell.x0 < MIN_LABEL ? null : (
                <>
                  {cell.data.name} <span class="number">{formatBytes(bytes)}</span>
                </>
              )}
            </button>
          );
        })}
      </div>
    </section>
  );
}

type Cell = HierarchyRectangularNode<TreeNode>;

function layout(root: TreeNode): Cell[] {
  const nodes = hierarchy(root, (node) => [...node.children.values()])
    .sum((node) => node.own)
    .sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
  return partition<TreeNode>()(nodes)
    .descendants()
    .filter((cell) => cell.x1 - cell.x0 >= MIN_SHARE);
}

/** The node at the end of a path, as far as it still exists at this instant. */
function focused(tree: TreeNode, path: readonly string[]): TreeNode {
  let at = tree;
  for (const name of path) {
    const child = at.children.get(name);
    if (child === undefined) return at;
    at = child;
  }
  return at;
}

/** Names below the root of what is drawn. */
function pathOf(cell: Cell): string[] {
  return cell
    .ancestors()
    .reverse()
    .slice(1)
    .map(({ data }) => data.name);
}

/** The same name has the same colour everywhere; numbers do not count, so that layers look alike. */
function shade(name: string): string {
  let hash = 0;
  for (const character of name.replace(/\d+/g, ''))
    hash = (hash * 31 + character.charCodeAt(0)) | 0;
  return `hsl(${20 + (Math.abs(hash) % 40)} ${60 + (Math.abs(hash >> 8) % 30)}% var(--flame-light))`;
}
