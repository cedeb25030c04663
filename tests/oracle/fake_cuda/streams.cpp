// Streams, events, graph capture, and kernel launches that do nothing. An event is a ticket on its stream: it is complete
// once the stream has passed it.

#include <algorithm>

#include "state.h"

using namespace fake_cuda;

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  Locked s;
  *stream = reinterpret_cast<cudaStream_t>(s->next_stream);
  s->next_stream += 0x10;
  Stream& created = s->streams[*stream];
  created.device = current_device();
  created.priority = priority;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Locked()->streams.erase(stream);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = Locked()->streams[stream].priority;
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Locked s;
  const Stream& stream = s->streams[handle];
  return stream.completed == stream.recorded ? cudaSuccess : failed(cudaErrorNotReady);
}
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Locked()->streams[stream].complete();
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned) {
  Locked s;
  const Event& event = s->events[event_handle];
  Stream& stream = s->streams[handle];
  if (event.capture == nullptr) return cudaSuccess;
  if (stream.capture == nullptr) {
    stream.capture = event.capture;
    stream.terminals = event.terminals;
    event.capture->streams.insert(handle);
  } else {
    std::set<GraphNode*> joined(stream.terminals.begin(), stream.terminals.end());
    joined.insert(event.terminals.begin(), event.terminals.end());
    stream.terminals.assign(joined.begin(), joined.end());
  }
  return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Locked s;
  *event = reinterpret_cast<cudaEvent_t>(s->next_event);
  s->next_event += 0x10;
  s->events[*event] = Event{};
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Locked()->events.erase(event);
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream_handle,
                                            unsigned) {
  Locked s;
  Stream& stream = s->streams[stream_handle];
  Event& event = s->events[handle];
  event.stream = stream_handle;
  event.recorded = true;
  event.capture = stream.capture;
  event.terminals = stream.terminals;
  if (stream.capture == nullptr) {
    event.ticket = ++stream.recorded;
    if (s->events_complete_at_once) stream.complete();
  }
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Locked s;
  const Event& event = s->events[handle];
  if (!event.recorded || s->streams[event.stream].completed >= event.ticket) return cudaSuccess;
  return failed(cudaErrorNotReady);
}
EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Locked s;
  const Event& event = s->events[handle];
  if (event.recorded) {
    Stream& stream = s->streams[event.stream];
    stream.completed = std::max(stream.completed, event.ticket);
  }
  return cudaSuccess;
}
EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 1;
  return cudaSuccess;
}

// Capture.

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
  std::swap(*mode, current);
  return cudaSuccess;
}
static cudaStreamCaptureStatus status_of(const Stream& stream) {
  return stream.capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = status_of(Locked()->streams[stream]);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                            unsigned long long* id, cudaGraph_t* graph,
                                            const cudaGraphNode_t** dependencies,
                                            const cudaGraphEdgeData** edges, size_t* count) {
  Locked s;
  Stream& stream = s->streams[handle];
  *status = status_of(stream);
  if (stream.capture == nullptr) return cudaSuccess;
  if (id != nullptr) *id = stream.capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(stream.capture->graph);
  stream.terminals_reported.clear();
  for (GraphNode* node : stream.terminals) {
    stream.terminals_reported.push_back(reinterpret_cast<cudaGraphNode_t>(node));
  }
  if (dependencies != nullptr) *dependencies = stream.terminals_reported.data();
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = stream.terminals_reported.size();
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t handle, cudaGraphNode_t* result,
                                                cudaGraphEdgeData*, size_t* count) {
  Locked s;
  const auto* node = reinterpret_cast<GraphNode*>(handle);
  for (size_t i = 0; result != nullptr && i < node->after.size(); i++) {
    result[i] = reinterpret_cast<cudaGraphNode_t>(node->after[i]);
  }
  *count = node->after.size();
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  Locked s;
  Stream& stream = s->streams[handle];
  if (stream.capture != nullptr) return failed(cudaErrorIllegalState);
  stream.capture = new Capture{s->next_capture++, new Graph{}, {handle}};
  stream.terminals.clear();
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t,
                                                 const cudaGraphNode_t*, const cudaGraphEdgeData*,
                                                 size_t, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(stream, mode);
}
EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Locked s;
  Capture* capture = s->streams[handle].capture;
  if (capture == nullptr) return failed(cudaErrorIllegalState);
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
  for (cudaStream_t captured : capture->streams) {
    s->streams[captured].capture = nullptr;
    s->streams[captured].terminals.clear();
  }
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t*,
                                                       const cudaGraphEdgeData*, size_t, unsigned) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* result, size_t* count) {
  Locked s;
  const auto* graph = reinterpret_cast<Graph*>(handle);
  for (size_t i = 0; result != nullptr && i < graph->nodes.size() && i < *count; i++) {
    result[i] = reinterpret_cast<cudaGraphNode_t>(graph->nodes[i]);
  }
  *count = graph->nodes.size();
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                 unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}
EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                        unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, graph, flags);
}
EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned,
                                        unsigned) {
  *object = reinterpret_cast<cudaUserObject_t>(0x10);
  return cudaSuccess;
}
EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }

// Kernels. Occupancy answers decide the temporary storage of some CUB kernels.

EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaSuccess;
}
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t,
                                               cudaStream_t) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback,
                                         void* data, unsigned) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = cudaFuncAttributes{};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = Locked()->compute_capability;
  attributes->maxDynamicSharedSizeBytes = 49152;
  return cudaSuccess;
}
EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                                 size_t) {
  *blocks = 2;
  return cudaSuccess;
}
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                          int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetSymbolAddress(void** pointer, const void*) {
  *pointer = reinterpret_cast<void*>(8 * kTiB);
  return cudaSuccess;
}
EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }
