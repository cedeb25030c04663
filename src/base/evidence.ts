/**
 * How a figure is known.
 * - `executed`: came out of the run (or out of a replay of its events);
 * - `source`: a formula read from source code, named in the provenance;
 * - `calibrated`: measured on a GPU, elsewhere or before;
 * - `assumed`: the user or a named assumption said so;
 * - `unknown`: not known; never to be read as zero.
 */
export type Evidence = 'executed' | 'source' | 'calibrated' | 'assumed' | 'unknown';

/** From strongest to weakest; a sum is as strong as its weakest part. */
export const EVIDENCE_ORDER: readonly Evidence[] = [
  'executed',
  'source',
  'calibrated',
  'assumed',
  'unknown',
];

/** The weakest of several kinds of evidence. `executed` for an empty list. */
export function weakestEvidence(evidence: Iterable<Evidence>): Evidence {
  let weakest = 0;
  for (const item of evidence) weakest = Math.max(weakest, EVIDENCE_ORDER.indexOf(item));
  return EVIDENCE_ORDER[weakest];
}
