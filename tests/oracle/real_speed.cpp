// How fast the real CUDACachingAllocator goes through a list of allocations and frees, without Python in between. Loaded
// by real_speed.py.

#include <c10/cuda/CUDACachingAllocator.h>

#include <time.h>

#include <cstdint>
#include <vector>

namespace allocator = c10::cuda::CUDACachingAllocator;

static std::vector<void*> blocks;

static double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Event i allocates sizes[i] bytes on the null stream into slot slots[i], or frees the slot when the size is 0; the list is
// repeated. Returns the seconds of processor time.
extern "C" double replay(const int32_t* slots, const double* sizes, int64_t count, int64_t repeats,
                         int32_t slot_count) {
  if (blocks.size() < static_cast<size_t>(slot_count)) blocks.resize(slot_count);
  const double start = processor_seconds();
  for (int64_t repeat = 0; repeat < repeats; repeat++) {
    for (int64_t i = 0; i < count; i++) {
      if (sizes[i] > 0) {
        blocks[slots[i]] =
            allocator::raw_alloc_with_stream(static_cast<size_t>(sizes[i]), nullptr);
      } else {
        allocator::raw_delete(blocks[slots[i]]);
      }
    }
  }
  return processor_seconds() - start;
}
