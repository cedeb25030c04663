// What a file of scripts/bench/ exports as `benchmark`.

export interface Measurement {
  readonly what: string;
  readonly value: number;
  readonly unit: string;
  /** The project's own bound; the benchmark fails beyond it. */
  readonly limit?: { readonly at: 'most' | 'least'; readonly value: number };
}

export interface Benchmark {
  readonly name: string;
  readonly summary: string;
  /** Measurements, or a sentence that says why it cannot run here. */
  run(): Promise<readonly Measurement[] | string>;
}

export function passes({ value, limit }: Measurement): boolean {
  if (limit === undefined) return true;
  return limit.at === 'most' ? value <= limit.value : value >= limit.value;
}
