// The figures of a scenario: peaks of one instant of tensors, of tensors with declared external memory, and of what the device would
// show (reserved + external), each with the phase in which it stood.

import { GpuDevice } from '../device/gpu_device.ts';
import { parseCapacity } from '../device/gpus.ts';
import { replay } from '../timeline/replay.ts';
import type { OutOfMemory, Timeline } from '../timeline/timeline.ts';
import type { Trace } from '../trace/trace.ts';

export interface ScenarioPeak {
  readonly bytes: number;
  readonly event: number;
  /** Path of the innermost phase; '' outside every phase. */
  readonly phase: string;
}

export interface ScenarioReport {
  /** Storages of tensors, as requested. */
  readonly tensor: { readonly peak: ScenarioPeak; readonly final: number };
  /** Tensors + external memory at one instant: what PyTorch's MemTracker with a ledger would say. */
  readonly peak: ScenarioPeak;
  /** Reserved by the allocator + external at one instant: what the device shows. */
  readonly resident: { readonly peak: ScenarioPeak; readonly final: number };
  readonly allocated: { readonly peak: ScenarioPeak };
  readonly reserved: { readonly peak: ScenarioPeak; readonly final: number };
  readonly external: { readonly peak: ScenarioPeak; readonly final: number };
  readonly outOfMemory: OutOfMemory | null;
  readonly timeline: Timeline;
}

export interface ScenarioDevice {
  /** A named GPU or a size. Default: what the trace was made for. */
  readonly gpu?: string;
  /** PYTORCH_ALLOC_CONF. */
  readonly allocConf?: string;
}

/** Replays a scenario's trace on one GPU. External memory is what the scenario declared; nothing else is added. */
export function reportScenario(trace: Trace, options: ScenarioDevice = {}): ScenarioReport {
  const meta = trace.devices.find((device) => device?.type === 'cuda');
  const device = new GpuDevice({
    capacity: parseCapacity(options.gpu ?? trace.header.gpu.id),
    context: false,
    omitNccl: true,
    ...(options.allocConf !== undefined && { allocConf: options.allocConf }),
  });
  const timeline = replay(trace, meta?.id ?? 0, device);
  const { series, peaks, final } = timeline;
  const at = (event: number, bytes: number): ScenarioPeak => ({
    bytes,
    event,
    phase: trace.phases[trace.events.phase[event]]?.path ?? '',
  });
  const peakOf = ({ event, bytes }: { event: number; bytes: number }) => at(event, bytes);
  let combined = at(0, 0);
  for (let i = 0; i < timeline.length; i++) {
    const bytes = series.requested[i] + series.external[i];
    if (bytes > combined.bytes) combined = at(i, bytes);
  }
  return {
    tensor: { peak: peakOf(peaks.requested), final: final.requested },
    peak: combined,
    resident: { peak: peakOf(peaks.resident), final: final.resident },
    allocated: { peak: peakOf(peaks.allocated) },
    reserved: { peak: peakOf(peaks.reserved), final: final.reserved },
    external: { peak: peakOf(peaks.external), final: final.external },
    outOfMemory: timeline.outOfMemory,
    timeline,
  };
}
