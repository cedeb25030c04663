// The failure of an allocation, with the text that PyTorch 2.14.1 prints
// (c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator::malloc and NativeCachingAllocator::malloc).

import { GiB, KiB, MiB } from '../base/bytes.ts';

/** What the allocator knew when it gave up. All figures are bytes. */
export interface OutOfMemoryFacts {
  readonly device: number;
  /** What the program asked for. */
  readonly requested: number;
  /** The block it would have been: `requested` rounded. */
  readonly size: number;
  /** What the driver was asked for ("Tried to allocate"). */
  readonly segmentSize: number;
  readonly stream: number;
  readonly deviceTotal: number;
  readonly deviceFree: number;
  readonly usedByProcess: number;
  /** The limit that `set_per_process_memory_fraction` puts, or null. */
  readonly allowed: number | null;
  readonly allocated: number;
  readonly reserved: number;
  /** Free bytes inside private pools, which PyTorch counts as allocated here. */
  readonly freeInPrivatePools: number;
  readonly expandableSegments: boolean;
}

/** `torch.OutOfMemoryError`. `message` is PyTorch's text. */
export class OutOfMemoryError extends Error {
  readonly facts: OutOfMemoryFacts;
  /**
   * True where `throw_on_cudamalloc_oom` refused before the driver was asked: no `oom` trace entry, and `num_ooms`
   * does not count it.
   */
  readonly rejected: boolean;

  constructor(facts: OutOfMemoryFacts, rejected: boolean) {
    super(rejected ? rejectionMessage(facts) : outOfMemoryMessage(facts));
    this.name = 'OutOfMemoryError';
    this.facts = facts;
    this.rejected = rejected;
  }
}

function rejectionMessage(facts: OutOfMemoryFacts): string {
  return (
    'CUDA out of memory. Allocation was preemptively rejected because it would exceed ' +
    `per_process_memory_fraction limit. Requested size: ${formatSize(facts.requested)}`
  );
}

function outOfMemoryMessage(facts: OutOfMemoryFacts): string {
  const allocated = facts.allocated + facts.freeInPrivatePools;
  const privatePools =
    facts.freeInPrivatePools > 0
      ? `with ${formatSize(facts.freeInPrivatePools)} allocated in private pools (e.g., CUDA Graphs), `
      : '';
  const allowed = facts.allowed === null ? '' : `${formatSize(facts.allowed)} allowed; `;
  const advice = facts.expandableSegments
    ? ''
    : ' If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True' +
      ' to avoid fragmentation.  See documentation for Memory Management ' +
      ' (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)';
  return (
    `CUDA out of memory. Tried to allocate ${formatSize(facts.segmentSize)}. GPU ${facts.device} has a total ` +
    `capacity of ${formatSize(facts.deviceTotal)} of which ${formatSize(facts.deviceFree)} is free. ` +
    `Including non-PyTorch memory, this process has ${formatSize(facts.usedByProcess)} memory in use. ` +
    `${allowed}Of the allocated memory ${formatSize(allocated)} is allocated by PyTorch, ${privatePools}and ` +
    `${formatSize(facts.reserved - allocated)} is reserved by PyTorch but unallocated.${advice}`
  );
}

/** c10/core/Allocator.h, format_size: the unit changes above, not at, each power of 1024. */
function formatSize(size: number): string {
  if (size <= KiB) return `${size} bytes`;
  if (size <= MiB) return `${twoDecimals(size, KiB)} KiB`;
  if (size <= GiB) return `${twoDecimals(size, MiB)} MiB`;
  return `${twoDecimals(size, GiB)} GiB`;
}

/** As C++ streams round: an exact half goes to the even digit, where `toFixed` goes up. */
function twoDecimals(size: number, unit: number): string {
  const hundredths = Math.floor((size * 100) / unit);
  const twiceRest = 2 * (size * 100 - hundredths * unit);
  const up = twiceRest > unit || (twiceRest === unit && hundredths % 2 === 1);
  const rounded = up ? hundredths + 1 : hundredths;
  return `${Math.floor(rounded / 100)}.${String(rounded % 100).padStart(2, '0')}`;
}
