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
export type { Band } from './base/band.ts';
export { type Bytes, bytes, formatBytes, parseBytes } from './base/bytes.ts';
export { ExitStatus, UserError } from './base/errors.ts';
export { type Evidence, weakestEvidence } from './base/evidence.ts';
export {
  type Comparison,
  compareRuns,
  type DeviceComparison,
  type PhaseComparison,
} from './compare/comparison.ts';
export { compareWithMeasurement, type MeasuredComparison } from './compare/gap.ts';
export { type Device, DeviceOutOfMemory } from './device/device.ts';
export { type ExternalPart, GpuDevice, type GpuDeviceOptions } from './device/gpu_device.ts';
export {
  type DeviceCapacity,
  findGpu,
  GPU_MODELS,
  type GpuModel,
  parseCapacity,
} from './device/gpus.ts';
export { deviceForTrace, type ReplayTarget, type TraceDevice } from './device/trace_device.ts';
export { type Component, parseComponents, readComponents } from './external/component.ts';
export { type ContextEstimate, contextEstimate } from './external/context.ts';
export { analyzeFile } from './measured/analysis.ts';
export { type CalibrationProfile, readProfile } from './measured/calibration/profile.ts';
export { readMeasuredRun } from './measured/formats.ts';
export type { MeasuredRun } from './measured/measured_run.ts';
export {
  type AlgorithmChoice,
  type AlgorithmRule,
  type Collective,
  defaultAlgorithmRule,
} from './nccl/algorithm.ts';
export {
  Communicator,
  type CommunicatorConfig,
  type CommunicatorStep,
  type NcclSettings,
} from './nccl/communicator.ts';
export { type NcclEnvironment, readEnvironment } from './nccl/environment.ts';
export { type ProcessGroup, ProcessGroups } from './nccl/process_groups.ts';
export {
  CommunicatorLedger,
  type CommunicatorProfile,
  calibratedProfile,
  NcclOutOfMemory,
  p2pProfile,
  sharedNetProfile,
} from './nccl/profile.ts';
export { findRelease, NCCL_RELEASES, type NcclRelease } from './nccl/release.ts';
export { parseOperations, type RankReport, stepReports } from './nccl/report.ts';
export type { MemoryTerm } from './nccl/term.ts';
export { findTopology, TOPOLOGY_PRESETS, type Topology } from './nccl/topology.ts';
export { type CompareDocument, compareDocument } from './report/compare_document.ts';
export { reportDocument } from './report/document.ts';
export { type ReportDocument, reportDocumentSchema } from './report/document_schema.ts';
export type { ExportFormat, ExportOptions } from './report/formats/format.ts';
export { EXPORT_FORMATS } from './report/formats/formats.ts';
export { htmlReport } from './report/html/html_report.ts';
export { markdownOf } from './report/markdown.ts';
export { reportSections } from './report/report_sections.ts';
export { textOf } from './report/text.ts';
export {
  type Bridge,
  type BridgeOptions,
  type CollectiveKind,
  type FakeScope,
  openBridge,
} from './scenario/bridge.ts';
export {
  reportScenario,
  type ScenarioDevice,
  type ScenarioPeak,
  type ScenarioReport,
} from './scenario/scenario_report.ts';
export { loadAdapters } from './sidecar/adapter.ts';
export {
  ensureEnvironment,
  type PythonEnvironment,
  type SetupOptions,
} from './sidecar/environment.ts';
export { BridgeClosedError, type PyObject, PythonError } from './sidecar/pythonia.ts';
export { type RunIdentity, resolveIdentity } from './sidecar/run_identity.ts';
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
