// Modules at the instant, those that repeat together: what the attention of all layers holds, in one row.

import { useMemo } from 'preact/hooks';
import { repeatedName } from '../../../attribution/module_name.ts';
import { formatBytes } from '../../../base/bytes.ts';
import type { Owner } from '../../../protocol/events.ts';
import { OWNER_TITLES } from '../../words.ts';
import type { TensorRow } from './instant.ts';
import { ownerBackground } from './owner_pattern.ts';
import type { SetState } from './state.ts';

interface Group {
  readonly name: string;
  readonly className: string;
  readonly members: Set<string>;
  bytes: number;
  tensors: number;
  readonly byOwner: Map<Owner, number>;
  readonly byPass: Map<string, number>;
}

export function GroupsView({
  rows,
  set,
}: {
  readonly rows: readonly TensorRow[];
  readonly set: SetState;
}) {
  const groups = useMemo(() => groupsOf(rows), [rows]);
  const largest = groups[0]?.bytes ?? 1;
  return (
    <section aria-label="Groups">
      <p class="muted">
        Modules whose names differ only in numbers are one row. A click lists the tensors of the
        row.
      </p>
      <table class="groups" data-test="groups">
        <thead>
          <tr>
            <th>Module</th>
            <th class="number">×</th>
            <th>Class</th>
            <th class="number">Bytes</th>
            <th class="number">Tensors</th>
            <th class="number">Forward</th>
            <th class="number">Backward</th>
            <th>By owner</th>
          </tr>
        </thead>
        <tbody>
          {groups.map((group) => (
            <tr key={group.name}>
              <td>
                <button
                  type="button"
                  class="link"
                  onClick={() => set({ view: 'tensors', filter: group.name })}
                >
                  {group.name === '' ? '(root)' : group.name}
                </button>
              </td>
              <td class="number">{group.members.size}</td>
              <td>{group.className}</td>
              <td class="number" data-bytes={group.bytes}>
                {formatBytes(group.bytes)}
              </td>
              <td class="number">{group.tensors}</td>
              <td class="number">{formatBytes(group.byPass.get('forward') ?? 0)}</td>
              <td class="number">
                {formatBytes(
                  (group.byPass.get('backward') ?? 0) + (group.byPass.get('recompute') ?? 0),
                )}
              </td>
              <td class="bar-cell">
                <span class="bar" style={{ width: `${(100 * group.bytes) / largest}%` }}>
                  {[...group.byOwner].map(([owner, bytes]) => (
                    <span
                      key={owner}
                      title={`${OWNER_TITLES[owner]}: ${formatBytes(bytes)}`}
                      style={{
                        width: `${(100 * bytes) / group.bytes}%`,
                        background: ownerBackground(owner),
                      }}
                    />
                  ))}
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function groupsOf(rows: readonly TensorRow[]): Group[] {
  const groups = new Map<string, Group>();
  for (const row of rows) {
    const name = repeatedName(row.module);
    let group = groups.get(name);
    if (group === undefined) {
      group = {
        name,
        className: row.className,
        members: new Set(),
        bytes: 0,
        tensors: 0,
        byOwner: new Map(),
        byPass: new Map(),
      };
      groups.set(name, group);
    }
    group.members.add(row.module);
    group.bytes += row.blockBytes;
    group.tensors++;
    group.byOwner.set(row.owner, (group.byOwner.get(row.owner) ?? 0) + row.blockBytes);
    group.byPass.set(row.pass, (group.byPass.get(row.pass) ?? 0) + row.blockBytes);
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
}
