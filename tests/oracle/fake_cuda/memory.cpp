// Memory: cudaMalloc and its kin, pinned host memory, copies that do nothing, and the driver's virtual memory calls, which
// PyTorch asks for by name (c10::cuda::DriverAPI) and does not link.

#include <cstdlib>
#include <cstring>
#include <string>

#include "state.h"

using namespace fake_cuda;

namespace {

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Whether `address` lies in a range of `ranges` (start -> size).
bool in_range(const std::map<uint64_t, uint64_t>& ranges, uint64_t address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return address < start + size;
}

}  // namespace

EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Locked s;
  const Device& device = s->devices[current_device()];
  *free = device.free();
  *total = device.capacity;
  return cudaSuccess;
}
EXPORT cudaError_t cudaMalloc(void** pointer, size_t size) {
  Locked s;
  Device& device = s->devices[current_device()];
  const uint64_t charged = round_up(size > 0 ? size : 1, kPage);
  if (charged > device.free()) {
    *pointer = nullptr;
    return failed(cudaErrorMemoryAllocation);
  }
  const uint64_t address = device.addresses.take(charged);
  device.used += charged;
  device.allocations[address] = charged;
  *pointer = reinterpret_cast<void*>(address);
  return cudaSuccess;
}
EXPORT cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  Locked s;
  for (size_t i = 0; i < s->devices.size(); i++) {
    Device& device = s->devices[i];
    auto found = device.allocations.find(address_of(pointer));
    if (found == device.allocations.end()) continue;
    device.used -= found->second;
    device.allocations.erase(found);
    if (s->free_synchronizes) s->complete_streams(static_cast<int>(i));
    return cudaSuccess;
  }
  return failed(cudaErrorInvalidValue);
}
EXPORT cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t) {
  return cudaMalloc(pointer, size);
}
EXPORT cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) { return cudaFree(pointer); }

EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned) {
  if (posix_memalign(pointer, 4096, size > 0 ? size : 1) != 0) {
    return failed(cudaErrorMemoryAllocation);
  }
  Locked()->host_ranges[address_of(*pointer)] = size;
  return cudaSuccess;
}
EXPORT cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return cudaHostAlloc(pointer, size, 0);
}
EXPORT cudaError_t cudaFreeHost(void* pointer) {
  Locked()->host_ranges.erase(address_of(pointer));
  free(pointer);
  return cudaSuccess;
}
EXPORT cudaError_t cudaHostRegister(void*, size_t, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Locked s;
  *attributes = cudaPointerAttributes{};
  attributes->type = cudaMemoryTypeUnregistered;
  const uint64_t address = address_of(pointer);
  auto on_device = [&](int device) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device;
    attributes->devicePointer = const_cast<void*>(pointer);
    return cudaSuccess;
  };
  for (size_t i = 0; i < s->devices.size(); i++) {
    if (s->devices[i].addresses.contains(address)) return on_device(static_cast<int>(i));
  }
  if (s->virtual_addresses.contains(address)) {
    auto after = s->mappings.upper_bound(address);
    if (after != s->mappings.begin()) {
      return on_device(s->physical.at(std::prev(after)->second.handle).device);
    }
  }
  if (in_range(s->host_ranges, address)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->hostPointer = attributes->devicePointer = const_cast<void*>(pointer);
  }
  return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) { return cudaSuccess; }
// What is read back from the device is zeros.
EXPORT cudaError_t cudaMemcpyAsync(void* to, const void*, size_t size, cudaMemcpyKind kind,
                                   cudaStream_t) {
  if (kind == cudaMemcpyDeviceToHost) memset(to, 0, size);
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void*, int, const void*, int, size_t, cudaStream_t) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t,
                                     cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemset(void*, int, size_t) { return cudaSuccess; }
EXPORT cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  *handle = cudaIpcMemHandle_t{};
  memcpy(handle, &pointer, sizeof pointer);
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return failed(cudaErrorNotSupported);
}
EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void* value) {
  *static_cast<uint64_t*>(value) = 0;
  return cudaSuccess;
}
EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void*) {
  return cudaSuccess;
}

// The driver's entry points.

namespace {

CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult device_get_attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  return CUDA_SUCCESS;
}
CUresult get_error_string(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY   ? "out of memory"
          : error == CUDA_ERROR_INVALID_VALUE ? "invalid argument"
                                              : "error of the fake CUDA driver";
  return CUDA_SUCCESS;
}
CUresult mem_get_allocation_granularity(size_t* granularity, const CUmemAllocationProp*,
                                        CUmemAllocationGranularity_flags) {
  *granularity = kPage;
  return CUDA_SUCCESS;
}
CUresult mem_address_reserve(CUdeviceptr* address, size_t size, size_t, CUdeviceptr,
                             unsigned long long) {
  if (size == 0 || size % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  Locked s;
  *address = s->virtual_addresses.take(size);
  s->reservations[*address] = size;
  return CUDA_SUCCESS;
}
CUresult mem_address_free(CUdeviceptr address, size_t) {
  Locked()->reservations.erase(address);
  return CUDA_SUCCESS;
}
CUresult mem_create(CUmemGenericAllocationHandle* handle, size_t size,
                    const CUmemAllocationProp* properties, unsigned long long) {
  if (size == 0 || size % kPage != 0) return CUDA_ERROR_INVALID_VALUE;
  Locked s;
  Device& device = s->devices[properties->location.id];
  if (size > device.free()) return CUDA_ERROR_OUT_OF_MEMORY;
  device.used += size;
  *handle = s->next_handle++;
  s->physical[*handle] = {properties->location.id, size, 0, false};
  return CUDA_SUCCESS;
}
void drop_if_unused(State& s, uint64_t handle) {
  auto found = s.physical.find(handle);
  if (found == s.physical.end()) return;
  const PhysicalMemory& memory = found->second;
  if (!memory.released || memory.mappings > 0) return;
  s.devices[memory.device].used -= memory.size;
  s.physical.erase(found);
}
CUresult mem_release(CUmemGenericAllocationHandle handle) {
  Locked s;
  auto found = s->physical.find(handle);
  if (found == s->physical.end()) return CUDA_ERROR_INVALID_VALUE;
  found->second.released = true;
  drop_if_unused(state(), handle);
  return CUDA_SUCCESS;
}
CUresult mem_map(CUdeviceptr address, size_t size, size_t, CUmemGenericAllocationHandle handle,
                 unsigned long long) {
  Locked s;
  auto found = s->physical.find(handle);
  const bool valid = found != s->physical.end() && found->second.size == size &&
                     s->mappings.count(address) == 0;
  if (!valid) return CUDA_ERROR_INVALID_VALUE;
  found->second.mappings++;
  s->mappings[address] = {size, handle};
  return CUDA_SUCCESS;
}
CUresult mem_unmap(CUdeviceptr address, size_t size) {
  Locked s;
  auto found = s->mappings.find(address);
  if (found == s->mappings.end() || found->second.size != size) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t handle = found->second.handle;
  s->mappings.erase(found);
  s->physical.at(handle).mappings--;
  drop_if_unused(state(), handle);
  if (s->free_synchronizes) s->complete_streams(-1);
  return CUDA_SUCCESS;
}
CUresult mem_set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}
CUresult not_supported(...) { return CUDA_ERROR_NOT_SUPPORTED; }

void* entry_point(const std::string& name) {
  static const std::unordered_map<std::string, void*> known = {
      {"cuDeviceGet", (void*)device_get},
      {"cuDeviceGetAttribute", (void*)device_get_attribute},
      {"cuGetErrorString", (void*)get_error_string},
      {"cuMemGetAllocationGranularity", (void*)mem_get_allocation_granularity},
      {"cuMemAddressReserve", (void*)mem_address_reserve},
      {"cuMemAddressFree", (void*)mem_address_free},
      {"cuMemCreate", (void*)mem_create},
      {"cuMemRelease", (void*)mem_release},
      {"cuMemMap", (void*)mem_map},
      {"cuMemUnmap", (void*)mem_unmap},
      {"cuMemSetAccess", (void*)mem_set_access},
      {"cuMemGetAddressRange", (void*)not_supported},
      {"cuMemExportToShareableHandle", (void*)not_supported},
      {"cuMemImportFromShareableHandle", (void*)not_supported},
      {"cuMemRetainAllocationHandle", (void*)not_supported},
      {"cuMemGetAllocationPropertiesFromHandle", (void*)not_supported},
      {"cuMemsetD32Async", (void*)not_supported},
      {"cuStreamWriteValue32", (void*)not_supported},
  };
  auto found = known.find(name);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                    unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
  *function = entry_point(name);
  if (result != nullptr) {
    *result = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}
