#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace fake_cuda {
namespace {

std::string setting(const char* name, const char* fallback) {
  const char* value = getenv(name);
  return value != nullptr && *value != '\0' ? value : fallback;
}

uint64_t number(const char* name, const char* fallback) {
  return strtoull(setting(name, fallback).c_str(), nullptr, 0);
}

}  // namespace

uint64_t AddressRange::take(uint64_t size) {
  const uint64_t address = next_;
  next_ += round_up(size, kPage);
  if (next_ > end_) {
    fprintf(stderr, "fake_cuda: an address range is used up\n");
    abort();
  }
  return address;
}

// Environment:
//   FAKECUDA_DEVICES     number of devices (1)
//   FAKECUDA_BYTES       bytes of each device (143771 MiB, an H200)
//   FAKECUDA_CTX_BYTES   bytes in use on each device from the start (0)
//   FAKECUDA_EVENTS      auto: an event is complete when it is recorded; manual: when its stream is said to have come
//                        that far (auto)
//   FAKECUDA_FREE_SYNCS  1: freeing device memory waits for the streams (0)
//   FAKECUDA_SM          compute capability, 90 for 9.0 (90)
// Addresses: cudaMalloc on device d from 16 TiB + d * 4 TiB, cuMemAddressReserve from 48 TiB, both upward.
State::State() {
  devices.resize(number("FAKECUDA_DEVICES", "1"));
  for (size_t i = 0; i < devices.size(); i++) {
    devices[i].capacity = number("FAKECUDA_BYTES", "150754820096");
    devices[i].external = number("FAKECUDA_CTX_BYTES", "0");
    devices[i].addresses.place(16 * kTiB + i * 4 * kTiB, 4 * kTiB);
  }
  virtual_addresses.place(48 * kTiB, 79 * kTiB);
  events_complete_at_once = setting("FAKECUDA_EVENTS", "auto") != "manual";
  free_synchronizes = number("FAKECUDA_FREE_SYNCS", "0") == 1;
  compute_capability = static_cast<int>(number("FAKECUDA_SM", "90"));
}

void State::complete_streams(int device) {
  for (auto& [handle, stream] : streams) {
    if (device < 0 || stream.device == device || handle == nullptr) stream.complete();
  }
}

State& state() {
  static State* instance = new State();  // never destroyed: PyTorch frees memory while the process ends
  return *instance;
}

std::recursive_mutex& Locked::mutex() {
  static auto* instance = new std::recursive_mutex();
  return *instance;
}

static thread_local int device_of_thread = 0;
static thread_local cudaError_t last_error = cudaSuccess;

int current_device() { return device_of_thread; }

cudaError_t failed(cudaError_t error) {
  last_error = error;
  return error;
}

}  // namespace fake_cuda

using namespace fake_cuda;

// What a test asks of the fake, through ctypes.

EXPORT void fakecuda_set_external(int device, uint64_t bytes) {
  Locked()->devices[device].external = bytes;
}
EXPORT uint64_t fakecuda_used(int device) { return Locked()->devices[device].used; }
// The GPU has come to the end of what is queued on the stream.
EXPORT void fakecuda_complete_stream(uint64_t stream) {
  Locked()->streams[reinterpret_cast<cudaStream_t>(stream)].complete();
}
// A kernel is launched on a stream under capture.
EXPORT void fakecuda_capture_add_node(uint64_t handle) {
  Locked s;
  Stream& stream = s->streams[reinterpret_cast<cudaStream_t>(handle)];
  if (stream.capture == nullptr) return;
  auto* node = new GraphNode{stream.terminals};
  stream.capture->graph->nodes.push_back(node);
  stream.terminals = {node};
}

// Devices and errors.

EXPORT cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }
EXPORT const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    default:
      return "cudaErrorFake";
  }
}
EXPORT const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    default:
      return "error of the fake CUDA";
  }
}
EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(Locked()->devices.size());
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetDevice(int* device) {
  *device = device_of_thread;
  return cudaSuccess;
}
EXPORT cudaError_t cudaSetDevice(int device) {
  Locked s;
  if (device < 0 || device >= static_cast<int>(s->devices.size())) {
    return failed(cudaErrorInvalidDevice);
  }
  device_of_thread = device;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSynchronize() {
  Locked()->complete_streams(device_of_thread);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  snprintf(text, size, "0000:%02X:00.0", 0x10 + device);
  return cudaSuccess;
}
// The figures of an H200.
EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  Locked s;
  if (device < 0 || device >= static_cast<int>(s->devices.size())) {
    return failed(cudaErrorInvalidDevice);
  }
  *p = cudaDeviceProp{};
  const int sm = s->compute_capability;
  if (sm == 90) {
    snprintf(p->name, sizeof p->name, "NVIDIA H200");
  } else {
    snprintf(p->name, sizeof p->name, "NVIDIA FAKE sm_%d", sm);
  }
  p->uuid.bytes[0] = static_cast<char>(device + 1);
  p->totalGlobalMem = s->devices[device].capacity;
  p->major = sm / 10;
  p->minor = sm % 10;
  p->pciBusID = 0x10 + device;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->reservedSharedMemPerBlock = 1024;
  p->totalConstMem = 65536;
  p->memPitch = 2147483647;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->memoryBusWidth = 6144;
  p->l2CacheSize = 62914560;
  p->persistingL2CacheMaxSize = 39321600;
  p->accessPolicyMaxWindowSize = 134213632;
  p->asyncEngineCount = 3;
  p->ECCEnabled = 1;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->unifiedAddressing = 1;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->managedMemory = p->concurrentManagedAccess = 1;
  p->computePreemptionSupported = 1;
  p->cooperativeLaunch = 1;
  p->hostRegisterSupported = 1;
  p->memoryPoolsSupported = 1;
  p->clusterLaunch = 1;
  p->ipcEventSupported = 1;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  const cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = p.regsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = p.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = p.maxGridSize[1];
      break;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = p.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = p.maxThreadsDim[2];
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrManagedMemory:
      *value = 1;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
