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

/** One quantity of all, small-pool and large-pool memory. */
export class PoolStats {
  readonly all = new SingleStat();
  readonly smallPool = new SingleStat();
  readonly largePool = new SingleStat();

  increase(isSmall: boolean, amount: number): void {
    this.all.increase(amount);
    (isSmall ? this.smallPool : this.largePool).increase(amount);
  }

  decrease(isSmall: boolean, amount: number): void {
    this.all.decrease(amount);
    (isSmall ? this.smallPool : this.largePool).decrease(amount);
  }
}

type Metrics = Readonly<Record<StatMetric, number>>;
type MetricsByPool = Readonly<Record<StatPool, Metrics>>;

/** Every counter, as `torch.cuda.memory_stats_as_nested_dict()` gives them. Pools are keyed `"first,second"`. */
export interface MemoryStats extends Readonly<Record<StatName, MetricsByPool>> {
  readonly num_alloc_retries: number;
  readonly num_ooms: number;
  /** Bytes when the allocator started; -1 is unlimited. */
  readonly max_split_size: number;
  readonly num_sync_all_streams: number;
  readonly num_device_alloc: number;
  readonly num_device_free: number;
  readonly num_oom_rejections: number;
  readonly reserved_bytes_by_private_pools: Readonly<Record<string, MetricsByPool>>;
  readonly oversize_allocations: Metrics;
  readonly oversize_segments: Metrics;
}

export class DeviceStats {
  readonly #maxSplitSize: number;
  readonly #values = new Float64Array(STAT_NAMES.length * PER_STAT);
  /** Reserved bytes of each private pool that ever had memory, by `"first,second"`. */
  readonly reservedByPrivatePool = new Map<string, PoolStats>();
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

  /** @param maxSplitSize the setting when the allocator starts, in bytes; Infinity when unlimited */
  constructor(maxSplitSize: number) {
    this.#maxSplitSize = maxSplitSize;
  }

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

  privatePool(id: readonly [number, number]): PoolStats {
    const key = id.join(',');
    let stat = this.reservedByPrivatePool.get(key);
    if (stat === undefined) {
      stat = new PoolStats();
      this.reservedByPrivatePool.set(key, stat);
    }
    return stat;
  }

  memoryStats(): MemoryStats {
    const byPool = (name: StatName): MetricsByPool => {
      const metrics = (pool: StatPool): Metrics => ({
        current: this.get(name, pool, 'current'),
        peak: this.get(name, pool, 'peak'),
        allocated: this.get(name, pool, 'allocated'),
        freed: this.get(name, pool, 'freed'),
      });
      return {
        all: metrics('all'),
        small_pool: metrics('small_pool'),
        large_pool: metrics('large_pool'),
      };
    };
    const privatePools = [...this.reservedByPrivatePool].map(
      ([id, { all, smallPool, largePool }]): [string, MetricsByPool] => [
        id,
        { all: { ...all }, small_pool: { ...smallPool }, large_pool: { ...largePool } },
      ],
    );
    return {
      num_alloc_retries: this.numAllocRetries,
      num_ooms: this.numOoms,
      max_split_size: Number.isFinite(this.#maxSplitSize) ? this.#maxSplitSize : -1,
      num_sync_all_streams: this.numSyncAllStreams,
      num_device_alloc: this.numDeviceAlloc,
      num_device_free: this.numDeviceFree,
      num_oom_rejections: this.numOomRejections,
      allocation: byPool('allocation'),
      segment: byPool('segment'),
      active: byPool('active'),
      inactive_split: byPool('inactive_split'),
      allocated_bytes: byPool('allocated_bytes'),
      reserved_bytes: byPool('reserved_bytes'),
      active_bytes: byPool('active_bytes'),
      inactive_split_bytes: byPool('inactive_split_bytes'),
      requested_bytes: byPool('requested_bytes'),
      reserved_bytes_by_private_pools: Object.fromEntries(privatePools),
      oversize_allocations: { ...this.oversizeAllocations },
      oversize_segments: { ...this.oversizeSegments },
    };
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
      ...[...this.reservedByPrivatePool.values()].flatMap((stats) => [
        stats.all,
        stats.smallPool,
        stats.largePool,
      ]),
    ];
  }
}
