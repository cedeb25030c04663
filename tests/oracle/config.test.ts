// PYTORCH_ALLOC_CONF beside PyTorch's own parser: the same texts are refused, and those that are taken mean the same, one after
// the other in one process (some keys keep their value from one text to the next, some do not).

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import {
  type AllocatorConfig,
  DEFAULT_CONFIG,
  parseAllocatorConf,
} from '../../src/allocator/config.ts';
import { UserError } from '../../src/base/errors.ts';
import { pythonOfJudge, whyNoJudge } from './judge.ts';

interface Settings {
  readonly error?: string;
  readonly max_split_size: number;
  readonly garbage_collection_threshold: number;
  readonly expandable_segments: boolean;
  readonly graph_capture_record_stream_reuse: boolean;
  readonly roundup_power2_divisions: Readonly<Record<string, number>>;
}

const TEXTS = [
  '',
  'expandable_segments:True',
  'max_split_size_mb:64',
  'garbage_collection_threshold:0.5',
  'max_split_size_mb:20,max_non_split_rounding_mb:20',
  'max_split_size_mb:64,large_segment_size_mb:64',
  'max_split_size_mb:63',
  'max_non_split_rounding_mb:63',
  'max_non_split_rounding_mb:64',
  'large_segment_size_mb:20',
  'large_segment_size_mb:11',
  'large_segment_size_mb:10',
  'large_segment_size_mb:20,max_split_size_mb:19',
  'expandable_segments:False,graph_capture_record_stream_reuse:True',
  'roundup_power2_divisions:1',
  'roundup_power2_divisions:8',
  'roundup_power2_divisions:0',
  'roundup_power2_divisions:3',
  'roundup_power2_divisions:[256:1,512:2,1024:4,>:8]',
  'roundup_power2_divisions:[1:4,64:8,256:2,>:1]',
  'roundup_power2_divisions:[64:8,32:4]',
  'roundup_power2_divisions:[65536:8]',
  'roundup_power2_divisions:[256:0,>:2]',
  'roundup_power2_divisions:[>:4]',
  'roundup_power2_divisions:[100:4]',
  'roundup_power2_divisions:[64:6]',
  ' expandable_segments : True , roundup_power2_divisions : [ 256 : 2 , > : 4 ] ',
  'garbage_collection_threshold:0',
  'garbage_collection_threshold:0.0',
  'garbage_collection_threshold:1.0',
  'garbage_collection_threshold:0.999',
  'per_process_memory_fraction:0',
  'per_process_memory_fraction:1.0',
  'per_process_memory_fraction:1.1',
  'throw_on_cudamalloc_oom:True',
  'throw_on_cudamalloc_oom:true',
  'expandable_segments:1',
  'backend:native',
  'backend:cudaMallocAsync',
  'backend:other',
  'release_lock_on_cudamalloc:True',
  'release_lock_on_hipmalloc:False',
  'pinned_use_cuda_host_register:True',
  'pinned_use_hip_host_register:False',
  'pinned_num_register_threads:8',
  'pinned_num_register_threads:128',
  'pinned_num_register_threads:256',
  'pinned_num_register_threads:3',
  'pinned_use_background_threads:False',
  'pinned_reserve_segment_size_mb:0',
  'pinned_reserve_segment_size_mb:64',
  'pinned_max_round_threshold_mb:64',
  'pinned_max_cached_size_mb:64',
  'pinned_free_catch_all:True',
  'expandable_segments_handle_type:posix_fd',
  'expandable_segments_reserve:0.5',
  'pinned_max_power2_size_mb:64',
  'unknown:1',
  'expandable_segments',
  'expandable_segments:',
  'expandable_segments:True,',
  'expandable_segments:True;max_split_size_mb:64',
  'roundup_power2_divisions:[256:1',
  'max_split_size_mb:abc',
];

const reason = whyNoJudge();
if (reason !== null) {
  console.warn(`\nSKIPPED: PYTORCH_ALLOC_CONF is not compared with PyTorch's parser: ${reason}\n`);
}

describe.skipIf(reason !== null)('torch 2.14.1 reads PYTORCH_ALLOC_CONF', () => {
  test(`${TEXTS.length} texts, one after the other`, () => {
    const done = spawnSync(
      pythonOfJudge(),
      ['-W', 'ignore', join(import.meta.dirname, 'settings.py')],
      { encoding: 'utf8', input: JSON.stringify(TEXTS) },
    );
    expect(done.status, done.stderr).toBe(0);
    const real = JSON.parse(done.stdout) as Settings[];
    let config: AllocatorConfig = DEFAULT_CONFIG;
    const model = TEXTS.map((text): unknown => {
      try {
        config = parseAllocatorConf(text, config);
        return meaning(config);
      } catch (error) {
        if (!(error instanceof UserError)) throw error;
        return 'refused';
      }
    });
    const expected = real.map((settings) =>
      settings.error === undefined ? meaningOfSettings(settings) : 'refused',
    );
    const rows = (outcomes: readonly unknown[]) => TEXTS.map((text, i) => [text, outcomes[i]]);
    expect(rows(model)).toEqual(rows(expected));
  }, 600_000);
});

/** The part that a snapshot's settings show. */
function meaning(config: AllocatorConfig): object {
  return {
    maxSplitSize: config.maxSplitSize === Number.POSITIVE_INFINITY ? -1 : config.maxSplitSize,
    garbageCollectionThreshold: config.garbageCollectionThreshold,
    expandableSegments: config.expandableSegments,
    graphCaptureRecordStreamReuse: config.graphCaptureRecordStreamReuse,
    roundup: config.roundupPower2Divisions ?? new Array(16).fill(0),
  };
}

function meaningOfSettings(settings: Settings): object {
  return {
    maxSplitSize: settings.max_split_size,
    garbageCollectionThreshold: settings.garbage_collection_threshold,
    expandableSegments: settings.expandable_segments,
    graphCaptureRecordStreamReuse: settings.graph_capture_record_stream_reuse,
    roundup: Object.entries(settings.roundup_power2_divisions)
      .sort(([a], [b]) => Number(a) - Number(b))
      .map(([, divisions]) => divisions),
  };
}
