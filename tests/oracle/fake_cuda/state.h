// The state of the fake CUDA: devices, address ranges, streams, events, captures. Device memory is a number, not
// storage: an address is never read or written, kernels and copies do nothing.
//
// Differences from a GPU, on purpose: no context overhead unless FAKECUDA_CTX_BYTES gives it; cudaFree and cuMemUnmap do
// not wait for the other streams unless FAKECUDA_FREE_SYNCS is 1; cuMemAddressReserve never fails; fabric handles are
// not supported (PyTorch then takes POSIX file descriptors, which changes no decision).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

constexpr uint64_t kPage = 2ull << 20;
constexpr uint64_t kTiB = 1ull << 40;

inline uint64_t round_up(uint64_t size, uint64_t step) { return (size + step - 1) / step * step; }

// Hands out addresses upward, in steps of the driver page, never twice.
class AddressRange {
 public:
  void place(uint64_t begin, uint64_t size) {
    begin_ = next_ = begin;
    end_ = begin + size;
  }
  uint64_t take(uint64_t size);
  bool contains(uint64_t address) const { return address >= begin_ && address < end_; }

 private:
  uint64_t begin_ = 0, next_ = 0, end_ = 0;
};

struct Device {
  uint64_t capacity = 0;
  uint64_t used = 0;      // by this process
  uint64_t external = 0;  // by the context and other processes
  AddressRange addresses;
  std::unordered_map<uint64_t, uint64_t> allocations;  // cudaMalloc: address -> bytes charged

  uint64_t free() const {
    const uint64_t taken = used + external;
    return taken >= capacity ? 0 : capacity - taken;
  }
};

// cuMemCreate: memory of a device, counted until it is released and mapped nowhere.
struct PhysicalMemory {
  int device;
  uint64_t size;
  int mappings;
  bool released;
};

struct Mapping {
  uint64_t size;
  uint64_t handle;
};

struct Graph;
struct GraphNode {
  std::vector<GraphNode*> after;
};
struct Graph {
  std::vector<GraphNode*> nodes;
};
struct Capture {
  uint64_t id;
  Graph* graph;
  std::set<cudaStream_t> streams;
};

struct Stream {
  int device = 0;
  int priority = 0;
  uint64_t recorded = 0;   // events recorded so far
  uint64_t completed = 0;  // of those, how many the stream has passed
  Capture* capture = nullptr;
  std::vector<GraphNode*> terminals;
  std::vector<cudaGraphNode_t> terminals_reported;

  void complete() { completed = recorded; }
};

struct Event {
  cudaStream_t stream = nullptr;
  uint64_t ticket = 0;
  bool recorded = false;
  Capture* capture = nullptr;
  std::vector<GraphNode*> terminals;
};

struct State {
  std::vector<Device> devices;
  AddressRange virtual_addresses;
  std::unordered_map<uint64_t, uint64_t> reservations;  // cuMemAddressReserve: address -> bytes
  std::map<uint64_t, Mapping> mappings;                 // by address
  std::unordered_map<uint64_t, PhysicalMemory> physical;
  std::map<uint64_t, uint64_t> host_ranges;  // pinned memory: address -> bytes
  std::unordered_map<cudaStream_t, Stream> streams;
  std::unordered_map<cudaEvent_t, Event> events;
  uint64_t next_handle = 1;
  uint64_t next_event = 0x700000;
  uint64_t next_stream = 0x500000;
  uint64_t next_capture = 1;
  bool events_complete_at_once = true;
  bool free_synchronizes = false;
  int compute_capability = 90;

  State();
  void complete_streams(int device);  // -1: of all devices
};

State& state();

// Holds the lock on the state for a call.
class Locked {
 public:
  Locked() : guard_(mutex()) {}
  State* operator->() const { return &state(); }

 private:
  static std::recursive_mutex& mutex();
  std::lock_guard<std::recursive_mutex> guard_;
};

int current_device();
// Remembers an error for cudaGetLastError, as the runtime does.
cudaError_t failed(cudaError_t error);

}  // namespace fake_cuda
