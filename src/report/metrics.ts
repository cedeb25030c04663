// Memory of each step under the names that people already plot, so that a prediction overlays a measurement in TensorBoard or W&B.
//
// - Megatron-LM (`training_log` in megatron/training/training.py): `mem-allocated-bytes` is allocated_bytes.all.current at the end of the
//   step, `mem-max-allocated-bytes` allocated_bytes.all.peak, `mem-reserved-bytes` reserved_bytes.all.current. Peaks there are since the
//   job's last reset_peak_memory_stats(), or since its start.
// - TorchTitan (`components/metrics.py`, DeviceMemoryMonitor): `memory/max_active(GiB)` and `memory/max_reserved(GiB)` are the peaks of
//   the logging interval, here one step, and the same as percent of the device.

import type { DeviceAnalysis } from '../attribution/analysis.ts';
import { GiB } from '../base/bytes.ts';
import { EVENTS } from '../protocol/events.ts';
import { labelOf } from '../trace/trace.ts';
import type { DeviceReport } from './document_schema.ts';

const RESET_PEAK = EVENTS.reset_peak.code;

export function runMetrics(device: DeviceAnalysis): DeviceReport['metrics'] {
  const { timeline, capacity } = device;
  const { code } = timeline.trace.events;
  const { allocated, reserved } = timeline.series;
  const rows: DeviceReport['metrics'] = [];
  let maxAllocated = 0;
  let next = 0;
  for (const { phase, peaks } of timeline.phases) {
    if (typeof phase.labels.step !== 'number') continue;
    // The outermost phase of a step is the step.
    if (labelOf(timeline.trace, phase.parent, 'step') !== undefined) continue;
    const end = Math.min(phase.endEvent, timeline.length - 1);
    // A job reads its statistics before it resets them: a reset inside the step counts from the next step on.
    let afterReset = maxAllocated;
    for (; next <= end; next++) {
      if (code[next] === RESET_PEAK) afterReset = 0;
      maxAllocated = Math.max(maxAllocated, allocated[next]);
      afterReset = Math.max(afterReset, allocated[next]);
    }
    const share = (bytes: number) =>
      capacity === null ? null : (100 * bytes) / capacity.usableBytes;
    rows.push({
      step: phase.labels.step,
      'mem-allocated-bytes': allocated[end],
      'mem-max-allocated-bytes': maxAllocated,
      'mem-reserved-bytes': reserved[end],
      'memory/max_active(GiB)': peaks.active.bytes / GiB,
      'memory/max_active(%)': share(peaks.active.bytes),
      'memory/max_reserved(GiB)': peaks.reserved.bytes / GiB,
      'memory/max_reserved(%)': share(peaks.reserved.bytes),
    });
    maxAllocated = afterReset;
  }
  return rows;
}
