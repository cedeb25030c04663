// One trace a role, not a rank. A role is a set of ranks whose memory cannot differ by construction: they run the same
// code on the same shapes. The adapter says how ranks are laid out and along which dimensions they can differ (facts
// of topic `layout` in the trace of any rank); everything else is arithmetic.

import { z } from 'zod';
import { UserError } from '../base/errors.ts';
import type { Fields } from '../protocol/events.ts';

/**
 * `dims`: outermost first, so that the last one is the fastest. `differing`: dimensions along which every coordinate is
 * a role of its own (pipeline stages). `uneven`: dimensions of which the first and the last coordinate are looked at: shards that
 * are not all of one size (chunks are cut from the front: torch.chunk, FSDP2's and Megatron's shards), and context parallelism,
 * whose ring attention runs ever more of one kind of step and fewer of the other from the first rank to the last.
 */
const layoutSchema = z.object({
  dims: z.array(z.string()).min(1),
  sizes: z.array(z.int().positive()).min(1),
  differing: z.array(z.string()).default([]),
  uneven: z.array(z.string()).default([]),
});
export type Layout = z.infer<typeof layoutSchema>;

export interface Role {
  /** `pp=0`, `pp=3 dp_shard=last`; `all` where nothing differs. */
  readonly label: string;
  /** The rank that is traced. */
  readonly representative: number;
  /** How many ranks of the job play the role. */
  readonly ranks: number;
  /** Pipeline stage, when there is one. */
  readonly stage: number | null;
}

/** The layout that a trace's facts state, or undefined when its adapter stated none that holds for `world`. */
export function layoutOf(facts: Fields | undefined, world: number): Layout | undefined {
  const parsed = layoutSchema.safeParse(facts);
  if (!parsed.success || parsed.data.dims.length !== parsed.data.sizes.length) return undefined;
  const product = parsed.data.sizes.reduce((a, b) => a * b, 1);
  return product === world ? parsed.data : undefined;
}

/** Rank of a coordinate, outermost dimension first. */
function rankAt(layout: Layout, coordinate: readonly number[]): number {
  return layout.sizes.reduce((rank, size, dim) => rank * size + coordinate[dim], 0);
}

/** The roles of a job, in rank order of their representatives. */
export function rolesOf(layout: Layout): Role[] {
  let partial: { coordinate: number[]; label: string[]; ranks: number; stage: number | null }[] = [
    { coordinate: [], label: [], ranks: 1, stage: null },
  ];
  layout.dims.forEach((dim, d) => {
    const size = layout.sizes[d];
    partial = partial.flatMap((role) => {
      const extend = (at: number, text: string, count: number) => ({
        coordinate: [...role.coordinate, at],
        label: text === '' ? role.label : [...role.label, text],
        ranks: role.ranks * count,
        stage: dim === 'pp' ? at : role.stage,
      });
      if (size === 1) return [extend(0, '', 1)];
      if (layout.differing.includes(dim)) {
        return Array.from({ length: size }, (_, at) => extend(at, `${dim}=${at}`, 1));
      }
      if (layout.uneven.includes(dim)) {
        return [extend(0, `${dim}=first`, size - 1), extend(size - 1, `${dim}=last`, 1)];
      }
      return [extend(0, '', size)];
    });
  });
  return partial
    .map(({ coordinate, label, ranks, stage }) => ({
      label: label.join(' ') || 'all',
      representative: rankAt(layout, coordinate),
      ranks,
      stage,
    }))
    .sort((a, b) => a.representative - b.representative);
}

/** The ranks to trace for `--ranks`: one role each, or the roles of the layout for `auto`. @throws UserError for a rank outside the world. */
export function chosenRoles(
  ranks: 'auto' | 'all' | readonly number[],
  layout: Layout | undefined,
  world: number,
): Role[] {
  if (ranks === 'auto' && layout !== undefined) return rolesOf(layout);
  const list =
    ranks === 'auto' || ranks === 'all' ? Array.from({ length: world }, (_, rank) => rank) : ranks;
  const beyond = list.find((rank) => rank >= world);
  if (beyond !== undefined) {
    throw new UserError('RANK', `rank ${beyond} is not in a world of ${world} (0 to ${world - 1})`);
  }
  return list.map((rank) => ({
    label: `rank ${rank}`,
    representative: rank,
    ranks: 1,
    stage: null,
  }));
}
