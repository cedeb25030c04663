// The allocator's counters, with PyTorch's names (c10/core/CachingDeviceAllocator.h, DeviceStats; the keys of
// `torch.cuda.memory_stats`). Reading and changing a counter takes constant time.

/** Counters kept for all, small-pool and large-pool memory, each as current, peak, allocated and freed. */
export const STAT_NAMES = [
  'allocation',
  'segment',
  'active',
  'inactive_split',
  'allocated_bytes',
  'reserved_bytes',
  'active_bytes',
  'inactive_split_bytes',
  'requested_bytes',
] as const;
export type StatName = (typeof STAT_NAMES)[number];

const POOLS = ['all', 'small_pool', 'large_pool'] as const;
export type StatPool = (typeof POOLS)[number];
const METRICS = ['current', 'peak', 'allocated', 'freed'] as const;
export type StatMetric = (typeof METRICS)[number];

const CURRENT = 0;
const PEAK = 1;
const ALLOCATED = 2;
const FREED = 3;
const PER_POOL = METRICS.length;
const PER_STAT = POOLS.length * PER_POOL;

/** Where each counter starts, for code on the hot path. */
export const Stat = {
  allocation: 0 * PER_STAT,
  segment: 1 * PER_STAT,
  active: 2 * PER_STAT,
  inactiveSplit: 3 * PER_STAT,
  allocatedBytes: 4 * PER_STAT,
  reservedBytes: 5 * PER_STAT,
  activeBytes: 6 * PER_STAT,
  inactiveSplitBytes: 7 * PER_STAT,
  requestedBytes: 8 * PER_STAT,
} as const;
export type Stat = (typeof Stat)[keyof typeof Stat];

/** Current, peak, allocated and freed of one quantity. Peaks change on increase only. */
export class SingleStat {
  current = 0;
  peak = 0;
  allocated = 0;
  freed = 0;

  increase(amount: number): void {
    this.current += amount;
    this.peak = Math.max(this.peak, this.current);
    this.allocated += amount;
  }

  decrease(amount: number): void {
    this.current -= amount;
    this.freed += amount;
  }

  resetPeak(): void {
    this.peak = this.current;
  }

  resetAccumulated(): void {
    this.allocated = 0;
    this.freed = 0;
  }
}

export class DeviceStats {
  readonly #values = new Float64Array(STAT_NAMES.length * PER_STAT);
  /** Reserved bytes of each private pool that ever had memory, by `"first,second"`. */
  readonly reservedByPrivatePool = new Map<string, SingleStat>();
  /** Blocks handed out of `max_split_size` or more. */
  readonly oversizeAllocations = new SingleStat();
  /** Segments of `max_split_size` or more. */
  readonly oversizeSegments = new SingleStat();
  /** Times that memory ran out and everything cached was given back before trying again. */
  numAllocRetries = 0;
  numOoms = 0;
  numOomRejections = 0;
  numSyncAllStreams = 0;
  /** cudaMalloc and map calls. */
  numDeviceAlloc = 0;
  /** cudaFree and unmap calls. */
  numDeviceFree = 0;

  increase(stat: Stat, isSmall: boolean, amount: number): void {
    const values = this.#values;
    const current = values[stat] + amount;
    values[stat] = current;
    if (current > values[stat + PEAK]) values[stat + PEAK] = current;
    values[stat + ALLOCATED] += amount;
    const pool = stat + (isSmall ? PER_POOL : 2 * PER_POOL);
    const inPool = values[pool] + amount;
    values[pool] = inPool;
    if (inPool > values[pool + PEAK]) values[pool + PEAK] = inPool;
    values[pool + ALLOCATED] += amount;
  }

  decrease(stat: Stat, isSmall: boolean, amount: number): void {
    const values = this.#values;
    values[stat] -= amount;
    values[stat + FREED] += amount;
    const pool = stat + (isSmall ? PER_POOL : 2 * PER_POOL);
    values[pool] -= amount;
    values[pool + FREED] += amount;
  }

  /** One step up or down, as PyTorch does where only the net change is known. */
  change(stat: Stat, isSmall: boolean, amount: number): void {
    if (amount > 0) this.increase(stat, isSmall, amount);
    else if (amount < 0) this.decrease(stat, isSmall, -amount);
  }

  current(stat: Stat): number {
    return this.#values[stat + CURRENT];
  }

  peak(stat: Stat): number {
    return this.#values[stat + PEAK];
  }

  /** @example stats.get('reserved_bytes', 'small_pool', 'peak') */
  get(name: StatName, pool: StatPool = 'all', metric: StatMetric = 'current'): number {
    const at =
      STAT_NAMES.indexOf(name) * PER_STAT +
      POOLS.indexOf(pool) * PER_POOL +
      METRICS.indexOf(metric);
    return this.#values[at];
  }

  privatePool(id: readonly [number, number]): SingleStat {
    const key = id.join(',');
    let stat = this.reservedByPrivatePool.get(key);
    if (stat === undefined) {
      stat = new SingleStat();
      this.reservedByPrivatePool.set(key, stat);
    }
    return stat;
  }

  /** `torch.cuda.reset_peak_memory_stats`. */
  resetPeak(): void {
    for (let at = 0; at < this.#values.length; at += PER_POOL) {
      this.#values[at + PEAK] = this.#values[at + CURRENT];
    }
    for (const stat of this.#singleStats()) stat.resetPeak();
  }

  /** `torch.cuda.reset_accumulated_memory_stats`. */
  resetAccumulated(): void {
    for (let at = 0; at < this.#values.length; at += PER_POOL) {
      this.#values[at + ALLOCATED] = 0;
      this.#values[at + FREED] = 0;
    }
    for (const stat of this.#singleStats()) stat.resetAccumulated();
    this.numAllocRetries = 0;
    this.numOoms = 0;
    this.numOomRejections = 0;
    this.numSyncAllStreams = 0;
    this.numDeviceAlloc = 0;
    this.numDeviceFree = 0;
  }

  #singleStats(): SingleStat[] {
    return [
      this.oversizeAllocations,
      this.oversizeSegments,
      ...this.reservedByPrivatePool.values(),
    ];
  }
}
