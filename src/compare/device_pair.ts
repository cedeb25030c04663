// Which device of one run stands beside which of the other. The same name first; then the GPUs that are left, in order: rank 0 used
// cuda:0, rank 4 cuda:4, and they are to be compared.

import type { DeviceAnalysis } from '../attribution/analysis.ts';

export function pairDevices(
  a: readonly DeviceAnalysis[],
  b: readonly DeviceAnalysis[],
): [DeviceAnalysis, DeviceAnalysis][] {
  const pairs: [DeviceAnalysis, DeviceAnalysis][] = [];
  const free = new Set(b);
  const take = (device: DeviceAnalysis, matches: (other: DeviceAnalysis) => boolean) => {
    const other = [...free].find(matches);
    if (other === undefined) return false;
    free.delete(other);
    pairs.push([device, other]);
    return true;
  };
  const unmatched = a.filter((device) => !take(device, ({ name }) => name === device.name));
  for (const device of unmatched) take(device, ({ meta }) => meta.type === device.meta.type);
  return pairs.sort(([x], [y]) => a.indexOf(x) - a.indexOf(y));
}
