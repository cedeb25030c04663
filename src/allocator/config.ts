// PYTORCH_ALLOC_CONF: the text, every key that PyTorch 2.14.1 knows, and what each one means.
//
// The grammar is PyTorch's (c10/core/AllocatorConfig.h, ConfigTokenizer; c10/cuda/CUDAAllocatorConfig.h, getKeys):
// `key:value,key:[a:b,c:d]`, blanks ignored, booleans exactly True or False. It is read more strictly in one respect:
// PyTorch's std::stoull takes "20abc" for 20 and "-1" for 2^64-1, this takes neither.
//
// A parse is not a fresh start. Each one puts max_split_size_mb, garbage_collection_threshold and
// roundup_power2_divisions back to their defaults and max_non_split_rounding_mb to the large segment size; every
// other key keeps its value until it is set again.

import { formatBytes, MiB } from '../base/bytes.ts';
import { UserError } from '../base/errors.ts';

/** Settings of the device allocator. Sizes are bytes. */
export interface AllocatorConfig {
  readonly expandableSegments: boolean;
  /** Segment for requests from 1 to 10 MiB, and the granule of a large expandable segment. */
  readonly largeSegmentSize: number;
  /** Blocks of this size and above are never split; Infinity when unlimited. */
  readonly maxSplitSize: number;
  /** A cached block of `maxSplitSize` or more serves a request only when it is less than this much larger. */
  readonly maxNonSplitRounding: number;
  /** Divisions between two powers of two, for sizes from 1 MiB, 2 MiB, … 32 GiB; null when off. */
  readonly roundupPower2Divisions: readonly number[] | null;
  /** Part of the allowed memory above which cached blocks are collected; 0 when off. */
  readonly garbageCollectionThreshold: number;
  readonly perProcessMemoryFraction: number;
  readonly throwOnCudaMallocOom: boolean;
  readonly graphCaptureRecordStreamReuse: boolean;
}

export const DEFAULT_CONFIG: AllocatorConfig = Object.freeze({
  expandableSegments: false,
  largeSegmentSize: 20 * MiB,
  maxSplitSize: Number.POSITIVE_INFINITY,
  maxNonSplitRounding: 20 * MiB,
  roundupPower2Divisions: null,
  garbageCollectionThreshold: 0,
  perProcessMemoryFraction: 1,
  throwOnCudaMallocOom: false,
  graphCaptureRecordStreamReuse: false,
});

/** One `key:value` of a configuration text, with what it does. */
export interface ConfigExplanation {
  readonly key: string;
  readonly value: string;
  readonly explanation: string;
}

type Value = string | readonly (readonly [string, string])[];
type Draft = { -readonly [K in keyof AllocatorConfig]: AllocatorConfig[K] };

interface KeyRule {
  /** Ends the sentence "… is not allowed; give …". */
  readonly allowed: string;
  /** Puts the value into `draft`. @returns what it does, in a sentence, or null when the value is not allowed. */
  apply(value: Value, draft: Draft): string | null;
}

/** Sizes from 1 MiB to 32 GiB (`kRoundUpPowerOfTwoIntervals`). */
const ROUNDUP_INTERVALS = 16;
const HOST_ONLY = 'Concerns pinned host memory only: no effect on device memory.';

/** In the order in which they are explained and listed. `large_segment_size_mb` is applied first, wherever it stands. */
const KEYS: Readonly<Record<string, KeyRule>> = {
  expandable_segments: flag((on, draft) => {
    draft.expandableSegments = on;
    return on
      ? 'New memory comes in expandable segments: one growing address range for each pool and stream, mapped in ' +
          'granules of 2 MiB (small pool) or the large segment size.'
      : 'New memory comes in fixed segments, one cudaMalloc each.';
  }),
  large_segment_size_mb: {
    allowed: 'whole MiB above 10',
    apply(value, draft) {
      const size = wholeNumber(value);
      if (size === null || size <= 10) return null;
      draft.largeSegmentSize = size * MiB;
      return (
        `Requests from 1 to 10 MiB get a segment of ${formatBytes(size * MiB)}; ` +
        'the same is the granule of large expandable segments.'
      );
    },
  },
  max_split_size_mb: {
    allowed: 'whole MiB, at least the large segment size',
    apply(value, draft) {
      const size = wholeNumber(value);
      if (size === null || size * MiB < draft.largeSegmentSize) return null;
      draft.maxSplitSize = size * MiB;
      return (
        `Cached blocks of ${formatBytes(size * MiB)} or more are never split: they serve only requests at least as ` +
        'large, and are the first to be given back when memory runs out.'
      );
    },
  },
  max_non_split_rounding_mb: {
    allowed: 'whole MiB, at least the large segment size',
    apply(value, draft) {
      const size = wholeNumber(value);
      if (size === null || size * MiB < draft.largeSegmentSize) return null;
      draft.maxNonSplitRounding = size * MiB;
      return (
        'With max_split_size_mb: a cached block that may not be split serves a request only when it is less than ' +
        `${formatBytes(size * MiB)} larger.`
      );
    },
  },
  roundup_power2_divisions: {
    allowed:
      'one power of two, or a list [size_mb:divisions,…,>:divisions] with powers of two (divisions may be 0: off)',
    apply(value, draft) {
      const table = divisionsTable(value);
      if (table === null) return null;
      draft.roundupPower2Divisions = table;
      return (
        'Requests are rounded up to the next of this many steps between two powers of two ' +
        `(for sizes from 1 MiB, 2 MiB, … 32 GiB: ${table.join(' ')}).`
      );
    },
  },
  garbage_collection_threshold: {
    allowed: 'a number above 0 and below 1',
    apply(value, draft) {
      const threshold = decimal(value);
      if (threshold === null || threshold <= 0 || threshold >= 1) return null;
      draft.garbageCollectionThreshold = threshold;
      return (
        `When reserved memory passes ${threshold} of the allowed memory, the oldest cached blocks are given back ` +
        'before a new segment is made. Works only with a memory fraction below 1.'
      );
    },
  },
  per_process_memory_fraction: {
    allowed: 'a number from 0 to 1',
    apply(value, draft) {
      const fraction = decimal(value);
      if (fraction === null || fraction < 0 || fraction > 1) return null;
      draft.perProcessMemoryFraction = fraction;
      return (
        `The allocator reserves at most ${fraction} of the device's memory. Taken when the allocator starts; a later ` +
        'change moves only the limit of throw_on_cudamalloc_oom.'
      );
    },
  },
  throw_on_cudamalloc_oom: flag((on, draft) => {
    draft.throwOnCudaMallocOom = on;
    return on
      ? 'An allocation that would pass per_process_memory_fraction is rejected before the driver is asked, and ' +
          'without giving back cached memory first.'
      : 'Allocations are not rejected ahead of the driver.';
  }),
  graph_capture_record_stream_reuse: flag((on, draft) => {
    draft.graphCaptureRecordStreamReuse = on;
    return on
      ? 'During CUDA graph capture a block used on several streams comes back as soon as the graph proves it is done.'
      : 'During CUDA graph capture a block used on several streams comes back only after the capture.';
  }),
  backend: {
    allowed: '"native" (cudaMallocAsync leaves caching to the driver, which is not modelled)',
    apply(value) {
      return value === 'native' ? 'The caching allocator of PyTorch itself.' : null;
    },
  },
  release_lock_on_cudamalloc: releaseLock(),
  release_lock_on_hipmalloc: releaseLock(),
  pinned_use_cuda_host_register: flag(() => HOST_ONLY),
  pinned_use_hip_host_register: flag(() => HOST_ONLY),
  pinned_num_register_threads: {
    allowed: 'a power of two up to 128',
    apply(value) {
      const threads = wholeNumber(value);
      return threads !== null && isPowerOf2(threads) && threads <= 128 ? HOST_ONLY : null;
    },
  },
  pinned_use_background_threads: flag(() => HOST_ONLY),
  pinned_reserve_segment_size_mb: hostSize(1),
  pinned_max_round_threshold_mb: hostSize(0),
  pinned_max_cached_size_mb: hostSize(0),
  pinned_free_catch_all: flag(() => HOST_ONLY),
};

/**
 * Reads a configuration text as PyTorch 2.14.1 does.
 *
 * @param previous the settings before; defaults for the text of the environment variable
 * @throws UserError `alloc_conf` naming the key, the value and what is allowed
 */
export function parseAllocatorConf(
  text: string,
  previous: AllocatorConfig = DEFAULT_CONFIG,
): AllocatorConfig {
  return readConf(text, previous).config;
}

/** What each key of `text` does, in its order. @throws UserError as `parseAllocatorConf` */
export function explainAllocatorConf(text: string): ConfigExplanation[] {
  return readConf(text, DEFAULT_CONFIG).explanations;
}

/** Every key that PyTorch 2.14.1 knows, with the values it takes. */
export function allocatorConfKeys(): { key: string; allowed: string }[] {
  return Object.entries(KEYS).map(([key, rule]) => ({ key, allowed: rule.allowed }));
}

function readConf(
  text: string,
  previous: AllocatorConfig,
): { config: AllocatorConfig; explanations: ConfigExplanation[] } {
  const pairs = readPairs(text);
  const draft: Draft = {
    ...previous,
    maxSplitSize: Number.POSITIVE_INFINITY,
    garbageCollectionThreshold: 0,
    roundupPower2Divisions: null,
  };
  for (const pair of pairs) {
    if (pair.key === 'large_segment_size_mb') applyPair(pair, draft);
  }
  draft.maxNonSplitRounding = draft.largeSegmentSize;
  const explanations = pairs.map((pair) => ({
    key: pair.key,
    value: printValue(pair.value),
    explanation: applyPair(pair, draft),
  }));
  return { config: Object.freeze(draft), explanations };
}

interface Pair {
  readonly key: string;
  readonly value: Value;
}

function applyPair({ key, value }: Pair, draft: Draft): string {
  const rule = KEYS[key];
  const explanation = rule.apply(value, draft);
  if (explanation === null) {
    throw confError(
      `${key}: the value "${printValue(value)}" is not allowed; give ${rule.allowed}`,
    );
  }
  return explanation;
}

function readPairs(text: string): Pair[] {
  const tokens = text.replace(/\s/g, '').match(/[,:[\]]|[^,:[\]]+/g) ?? [];
  const pairs: Pair[] = [];
  let at = 0;
  const word = (what: string): string => {
    const token = tokens[at];
    if (token === undefined || /^[,:[\]]$/.test(token)) {
      throw confError(
        `expected ${what} but found ${token === undefined ? 'the end' : `"${token}"`}`,
      );
    }
    at++;
    return token;
  };
  const punctuation = (token: string, after: string): void => {
    if (tokens[at] !== token) {
      throw confError(`expected "${token}" after "${after}" but found ${tokens[at] ?? 'the end'}`);
    }
    at++;
  };
  while (at < tokens.length) {
    const key = word('a key');
    if (!Object.hasOwn(KEYS, key)) {
      throw confError(
        `"${key}" is not a key of PyTorch 2.14.1; it knows ${Object.keys(KEYS).join(', ')}`,
      );
    }
    punctuation(':', key);
    if (tokens[at] === '[') {
      at++;
      const list: [string, string][] = [];
      while (tokens[at] !== ']') {
        const size = word(`a size in the list of ${key}`);
        punctuation(':', size);
        list.push([size, word(`a value in the list of ${key}`)]);
        if (tokens[at] !== ']') punctuation(',', list[list.length - 1].join(':'));
      }
      at++;
      pairs.push({ key, value: list });
    } else {
      pairs.push({ key, value: word(`a value for ${key}`) });
    }
    if (at < tokens.length) punctuation(',', key);
  }
  return pairs;
}

function confError(problem: string): UserError {
  return new UserError('alloc_conf', `PYTORCH_ALLOC_CONF: ${problem}`);
}

function printValue(value: Value): string {
  return typeof value === 'string' ? value : `[${value.map((pair) => pair.join(':')).join(',')}]`;
}

function flag(apply: (on: boolean, draft: Draft) => string): KeyRule {
  return {
    allowed: 'True or False',
    apply: (value, draft) =>
      value === 'True' || value === 'False' ? apply(value === 'True', draft) : null,
  };
}

function releaseLock(): KeyRule {
  return flag(() => 'Lets other threads allocate during cudaMalloc: no effect on a single thread.');
}

function hostSize(least: number): KeyRule {
  return {
    allowed: `whole MiB, at least ${least}`,
    apply(value) {
      const size = wholeNumber(value);
      return size === null || size < least ? null : HOST_ONLY;
    },
  };
}

function wholeNumber(value: Value): number | null {
  if (typeof value !== 'string' || !/^\d{1,15}$/.test(value)) return null;
  return Number(value);
}

function decimal(value: Value): number | null {
  if (typeof value !== 'string' || !/^(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(value)) return null;
  return Number(value);
}

function isPowerOf2(value: number): boolean {
  return value >= 1 && value <= 2 ** 30 && (value & (value - 1)) === 0;
}

/** c10/core/AllocatorConfig.cpp, parseRoundUpPower2Divisions: the first entry also fills all smaller sizes. */
function divisionsTable(value: Value): number[] | null {
  const table = new Array<number>(ROUNDUP_INTERVALS).fill(0);
  if (typeof value === 'string') {
    const divisions = wholeNumber(value);
    return divisions !== null && isPowerOf2(divisions) ? table.fill(divisions) : null;
  }
  let last = 0;
  for (const [position, [sizeText, divisionsText]] of value.entries()) {
    const divisions = wholeNumber(divisionsText);
    if (divisions === null || (divisions !== 0 && !isPowerOf2(divisions))) return null;
    if (sizeText === '>') {
      table.fill(divisions, last + 1);
      continue;
    }
    const size = wholeNumber(sizeText);
    if (size === null || !isPowerOf2(size)) return null;
    last = Math.min(Math.log2(size), ROUNDUP_INTERVALS - 1);
    if (position === 0) table.fill(divisions, 0, last);
    table[last] = divisions;
  }
  return table;
}
