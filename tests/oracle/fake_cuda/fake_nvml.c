// libnvidia-ml.so.1 for the fake CUDA: what c10::cuda::DriverAPI asks. PyTorch 2.14.1 opens it for expandable segments
// (fabric support) and for "this process has … memory in use" in the out-of-memory message.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef void* nvmlDevice_t;
typedef struct {
  unsigned pid;
  unsigned long long used_bytes;
} nvmlProcessInfo_v1_t;

enum { NVML_SUCCESS = 0, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_INSUFFICIENT_SIZE = 7 };

// PCI bus of device 0 (cudaGetDeviceProperties of the fake).
enum { kFirstBus = 0x10 };

static nvmlDevice_t handle_of(unsigned index) { return (nvmlDevice_t)(size_t)(index + 1); }
static int index_of(nvmlDevice_t device) { return (int)(size_t)device - 1; }

nvmlReturn_t nvmlInit(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlInit_v2(void) { return NVML_SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char* nvmlErrorString(nvmlReturn_t result) {
  (void)result;
  return "error of the fake NVML";
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned* count) {
  const char* devices = getenv("FAKECUDA_DEVICES");
  *count = devices != NULL && *devices != '\0' ? (unsigned)atoi(devices) : 1;
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  *device = handle_of(index);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device) {
  unsigned domain = 0, bus = kFirstBus;
  sscanf(id, "%x:%x", &domain, &bus);
  *device = handle_of(bus - kFirstBus);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, void* type) {
  (void)device, (void)link, (void)type;
  return NVML_ERROR_NOT_SUPPORTED;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, void* pci) {
  (void)device, (void)link, (void)pci;
  return NVML_ERROR_NOT_SUPPORTED;
}
// No fabric: all fields after the version are zero.
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void* info) {
  (void)device;
  memset((char*)info + 4, 0, 32);
  return NVML_SUCCESS;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return NVML_SUCCESS;
}
// One process: this one.
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                  nvmlProcessInfo_v1_t* processes) {
  const int fits = *count >= 1 && processes != NULL;
  *count = 1;
  if (!fits) return NVML_ERROR_INSUFFICIENT_SIZE;
  unsigned long long (*used)(int) =
      (unsigned long long (*)(int))dlsym(RTLD_DEFAULT, "fakecuda_used");
  processes[0] = (nvmlProcessInfo_v1_t){(unsigned)getpid(), used ? used(index_of(device)) : 0};
  return NVML_SUCCESS;
}
