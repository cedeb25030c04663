// The public API. What is not exported here may change in any release.

export { CachingAllocator } from './allocator/caching_allocator.ts';
export { type AllocatorConfig, parseAllocatorConf } from './allocator/config.ts';
export {
  type Analysis,
  type AnalysisOptions,
  analyze,
  analyzeTrace,
  type DeviceAnalysis,
} from './attribution/analysis.ts';
export { type Bytes, bytes, formatBytes, parseBytes } from './base/bytes.ts';
export { ExitStatus, UserError } from './base/errors.ts';
export { type Evidence, weakestEvidence } from './base/evidence.ts';
export { type Device, DeviceOutOfMemory } from './device/device.ts';
export {
  type DeviceCapacity,
  findGpu,
  GPU_MODELS,
  type GpuModel,
  parseCapacity,
} from './device/gpus.ts';
export { loadAdapters } from './sidecar/adapter.ts';
export {
  ensureEnvironment,
  type PythonEnvironment,
  type SetupOptions,
} from './sidecar/environment.ts';
export { type SourceIdentity, sourceIdentity } from './sidecar/source_identity.ts';
export {
  type TraceContext,
  type TraceJob,
  type TraceOutcome,
  traceRun,
} from './sidecar/trace_run.ts';
export { replay } from './timeline/replay.ts';
export {
  MEMORY_KINDS,
  type MemoryKind,
  type OutOfMemory,
  type Peak,
  type PhaseSpan,
  type Timeline,
} from './timeline/timeline.ts';
export { readTrace, readTraceHeader } from './trace/reader.ts';
export { framesOf, type PhaseMeta, type Trace } from './trace/trace.ts';
