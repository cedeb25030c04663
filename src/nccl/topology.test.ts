import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { domainOf, findTopology } from './topology.ts';

let folder = '';
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'topology-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(content: unknown): string {
  const path = join(folder, 'machine.json');
  writeFileSync(path, typeof content === 'string' ? content : JSON.stringify(content));
  return path;
}

const machine = {
  name: 'four-a100-bridged',
  gpu: 'a100-40gb',
  computeCapability: 80,
  gpusPerNode: 4,
  nvlink: { links: 4, domainGpus: 4, ringChannels: 12, nvls: false },
  network: { cardsPerNode: 1, bandwidth: 12, gpuDirect: false },
  source: "NCCL's log on that machine",
};

test('a topology file is read with its defaults', () => {
  const topology = findTopology(file(machine));
  expect(topology).toMatchObject({ name: 'four-a100-bridged', cpu: 'x86' });
});

test('a file that is not of the format names what is wrong', () => {
  expect(() => findTopology(file({ ...machine, gpusPerNode: 0, extra: 1 }))).toThrow(
    /is not a topology:[\s\S]*gpusPerNode[\s\S]*|extra/,
  );
  expect(() => findTopology(file('{'))).toThrow(/is not JSON/);
  expect(() => findTopology(join(folder, 'none.json'))).toThrow(/cannot read/);
});

test('an unknown name lists the presets', () => {
  expect(() => findTopology('dgx-h1000')).toThrow(/Known: dgx-a100, dgx-h100/);
});

test('ranks of one rack of GB200 are one domain, unless multi-node NVLink is off', () => {
  const rack = findTopology('gb200-nvl72');
  const domains = (multiNode: boolean) =>
    [0, 3, 4, 71, 72].map((rank) => domainOf(rank, rack, { gpusPerNode: 4 }, multiNode));
  expect(domains(true)).toEqual([0, 0, 0, 0, 1]);
  expect(domains(false)).toEqual([0, 0, 1, 17, 18]);
});
