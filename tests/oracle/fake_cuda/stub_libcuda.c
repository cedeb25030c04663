// libcuda.so.1 for the fake CUDA. torch.cuda.init loads libcaffe2_nvrtc.so, which is linked with it; few of these are ever
// called. The others say CUDA_ERROR_NOT_SUPPORTED.

#include <stddef.h>

enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_SUPPORTED = 801 };

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  (void)device;
  if (flags != NULL) *flags = 0;
  if (active != NULL) *active = 0;
  return CUDA_SUCCESS;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  (void)device;
  *context = (void*)0x100;
  return CUDA_SUCCESS;
}
int cuCtxGetCurrent(void** context) {
  *context = (void*)0x100;
  return CUDA_SUCCESS;
}
int cuCtxSetCurrent(void* context) {
  (void)context;
  return CUDA_SUCCESS;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)attribute, (void)device;
  *value = 0;
  return CUDA_SUCCESS;
}
int cuGetErrorString(int error, const char** text) {
  (void)error;
  *text = "error of the stub libcuda";
  return CUDA_SUCCESS;
}
int cuModuleLoadData(void** module, const void* image) {
  (void)image;
  *module = (void*)0x200;
  return CUDA_SUCCESS;
}
int cuModuleLoadDataEx(void** module, const void* image) { return cuModuleLoadData(module, image); }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  (void)module, (void)name;
  *function = (void*)0x300;
  return CUDA_SUCCESS;
}
int cuModuleUnload(void) { return CUDA_SUCCESS; }
int cuLaunchKernel(void) { return CUDA_SUCCESS; }
int cuFuncSetAttribute(void) { return CUDA_SUCCESS; }
int cuFuncGetAttribute(int* value) {
  *value = 0;
  return CUDA_SUCCESS;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks) {
  *blocks = 2;
  return CUDA_SUCCESS;
}

#define NOT_SUPPORTED(name) \
  int name(void) { return CUDA_ERROR_NOT_SUPPORTED; }

NOT_SUPPORTED(cuFuncSetCacheConfig)
NOT_SUPPORTED(cuLaunchCooperativeKernel)
NOT_SUPPORTED(cuLinkAddData_v2)
NOT_SUPPORTED(cuLinkComplete)
NOT_SUPPORTED(cuLinkCreate_v2)
NOT_SUPPORTED(cuModuleLoad)
NOT_SUPPORTED(cuPointerGetAttribute)
NOT_SUPPORTED(cuTensorMapEncodeTiled)
