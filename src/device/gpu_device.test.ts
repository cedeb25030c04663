import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Band } from '../base/band.ts';
import { bytes, GiB, MiB } from '../base/bytes.ts';
import { parseComponents } from '../external/component.ts';
import type { NcclSettings } from '../nccl/communicator.ts';
import { readEnvironment } from '../nccl/environment.ts';
import {
  CommunicatorLedger,
  type CommunicatorProfile,
  calibratedProfile,
  p2pProfile,
} from '../nccl/profile.ts';
import { DEFAULT_RELEASE } from '../nccl/release.ts';
import { findTopology } from '../nccl/topology.ts';
import type { EventOf } from '../protocol/events.ts';
import { DeviceOutOfMemory } from './device.ts';
import { GpuDevice } from './gpu_device.ts';
import { capacityOf, findGpu } from './gpus.ts';

function nccl(
  topology: string,
  gpusPerNode?: number,
  env: Record<string, string> = {},
): NcclSettings {
  const machine = findTopology(topology);
  return {
    release: DEFAULT_RELEASE,
    topology: machine,
    environment: readEnvironment(env, DEFAULT_RELEASE),
    placement: { gpusPerNode: gpusPerNode ?? machine.gpusPerNode },
  };
}

function group(id: number, ranks: readonly number[], eager = false): EventOf<'communicator'> {
  return {
    type: 'communicator',
    communicator: id,
    name: `group ${id}`,
    backend: 'nccl',
    ranks,
    parent: 0,
    options: { eager },
  };
}

function collective(communicator: number, size: number, peer = 0): EventOf<'collective_begin'> {
  return {
    type: 'collective_begin',
    collective: 1,
    communicator,
    kind: 0,
    bytes: size,
    stream: 0,
    async: false,
    peer,
  };
}

/** A device with nothing outside the allocator but what the test puts there. */
function bare(size: number, allocConf = ''): GpuDevice {
  return new GpuDevice({ capacity: capacityOf(bytes(size)), allocConf, context: false });
}

const resident = (device: GpuDevice) => device.counters.reserved + device.counters.external;

test('collectives demo: 64 MiB shard, eight ranks, two gathers one after the other', () => {
  // elfiegg/memTracker, demo of the README: 576 MiB of tensors; 576, 624 and 768 MiB with NCCL omitted, P2P over 4 channels
  // and P2P over 16 channels.
  const demo = (profile: CommunicatorProfile) => {
    const device = bare(GiB);
    const ledger = new CommunicatorLedger(device.account);
    ledger.register('world', profile);
    device.malloc(64 * MiB, 0, 0);
    let tensors = 0;
    let combined = 0;
    for (let i = 0; i < 2; i++) {
      const gathered = device.malloc(8 * 64 * MiB, 0, 0);
      const pending = ledger.begin('world');
      tensors = Math.max(tensors, device.counters.allocated);
      combined = Math.max(combined, device.counters.allocated + device.counters.external);
      ledger.complete(pending);
      device.free(gathered);
    }
    return [tensors / MiB, combined / MiB];
  };
  const omitted = { ...p2pProfile(0), atFirstUse: bytes(0) };
  expect(demo(omitted)).toEqual([576, 576]);
  expect(demo(p2pProfile(4))).toEqual([576, 624]);
  expect(demo(p2pProfile(16))).toEqual([576, 768]);
});

test.each([
  ['', 41, 33],
  ['expandable_segments:True', 55, 47],
])('overhead timeline with "%s": NCCL before or after a 25 MiB tensor', (conf, before, after) => {
  // elfiegg/memTracker, overhead scenario: 4 MiB context, 3 MiB external workspace at the tensor's peak, 8 MiB persistent NCCL,
  // two overlapping temporaries of 2 MiB: 41 MiB fixed and 55 expandable; 33 and 47 when NCCL comes after an emptied cache.
  const components = parseComponents(
    [
      {
        name: 'context',
        category: 'context',
        bytes: '4MiB',
        lifetime: 'persistent',
        evidence: 'assumed',
        provenance: 'scenario',
      },
      {
        name: 'workspace',
        category: 'workspace',
        bytes: '3MiB',
        lifetime: { phase: 'peak' },
        evidence: 'assumed',
        provenance: 'scenario',
      },
    ],
    'scenario',
  );
  const run = (ncclFirst: boolean) => {
    const device = new GpuDevice({
      capacity: capacityOf(bytes(GiB)),
      allocConf: conf,
      components,
    });
    const ledger = new CommunicatorLedger(device.account);
    let peak = resident(device);
    const note = () => {
      peak = Math.max(peak, resident(device));
    };
    const communicate = () => {
      ledger.register('world', calibratedProfile({ atFirstUse: 8 * MiB, provenance: 'scenario' }));
      const first = ledger.begin('world', [2 * MiB]);
      const second = ledger.begin('world', [2 * MiB]);
      note();
      ledger.complete(first);
      ledger.complete(second);
    };
    const compute = () => {
      const tensor = device.malloc(25 * MiB, 0, 0);
      device.beginPhase('peak');
      note();
      device.endPhase('peak');
      device.free(tensor);
      device.emptyCache();
    };
    for (const part of ncclFirst ? [communicate, compute] : [compute, communicate]) part();
    return peak / MiB;
  };
  expect(run(true)).toBe(before);
  expect(run(false)).toBe(after);
});

test('two GB200: the measured residual, step by step', () => {
  // elfiegg/memTracker, experiments/gb200_calibration.json, rank 1 (without the other process's context): driver-used minus
  // reserved, MiB.
  const device = new GpuDevice({
    capacity: capacityOf(findGpu('gb200')),
    nccl: nccl('gb200-nvl72', 2),
    rank: 1,
  });
  const residual = () => device.counters.external / MiB;
  expect(residual()).toBe(800.375);
  device.createCommunicator(group(1, [0, 1], true));
  expect(residual()).toBe(1218.375);
  device.beginCollective(collective(1, 4096), 'all_reduce');
  expect(residual()).toBe(1778.375);
  for (const size of [4096, 32 * MiB, 32 * MiB]) {
    device.beginCollective(collective(1, size), 'all_reduce');
  }
  expect(residual()).toBe(1778.375);
  device.createCommunicator(group(2, [0, 1]));
  device.beginCollective(collective(2, 4096), 'all_reduce');
  expect(residual()).toBe(2408.375);
  device.destroyCommunicator(1);
  device.destroyCommunicator(2);
  expect(residual()).toBe(1148.375);
});

test('lazy groups take memory at their first call, eager ones when they are made', () => {
  const device = new GpuDevice({ capacity: capacityOf(findGpu('h100')), nccl: nccl('dgx-h100') });
  const ranks = [0, 1, 2, 3, 4, 5, 6, 7];
  const start = device.counters.external;
  device.createCommunicator(group(1, ranks));
  expect(device.counters.external).toBe(start);
  device.createCommunicator(group(2, ranks, true));
  // 230 MiB of communicator and the code of NCCL's kernels.
  const eager = device.counters.external - start;
  expect(eager).toBeGreaterThan(230 * MiB);
  device.createCommunicator(group(3, ranks, true));
  expect(device.counters.external - start - eager).toBe(230 * MiB);
});

test('a send outside a batch has a communicator of two ranks of its own', () => {
  const device = new GpuDevice({ capacity: capacityOf(findGpu('h100')), nccl: nccl('dgx-h100') });
  device.createCommunicator(group(1, [0, 1, 2, 3]));
  device.beginCollective(collective(1, 4096, 1 + 1), 'send');
  device.beginCollective(collective(1, 4096, 2 + 1), 'batch_send');
  const names = device.externalParts().filter(({ name }) => name.startsWith('NCCL communicator'));
  expect(names.map(({ name }) => name)).toEqual([
    'NCCL communicator group 1 [0, 1] (2 ranks)',
    'NCCL communicator group 1 (4 ranks)',
  ]);
});

test('gloo groups take no device memory', () => {
  const device = new GpuDevice({ capacity: capacityOf(findGpu('h100')), nccl: nccl('dgx-h100') });
  const before = device.counters.external;
  device.createCommunicator({ ...group(1, [0, 1]), backend: 'gloo' });
  device.beginCollective(collective(1, 4096), 'all_reduce');
  expect(device.counters.external).toBe(before);
});

test('without a topology communicators are unknown, not zero', () => {
  const device = new GpuDevice({ capacity: capacityOf(findGpu('h100')) });
  expect(device.counters.external).toBeGreaterThan(0);
  device.createCommunicator(group(1, [0, 1]));
  expect(device.counters.external).toBeNaN();
  device.destroyCommunicator(1);
  expect(device.counters.external).toBeGreaterThan(0);
});

test('a plain number of bytes has an unknown context', () => {
  const device = new GpuDevice({ capacity: capacityOf(bytes(GiB)) });
  expect(device.counters.external).toBeNaN();
  expect(device.externalParts()[0]).toMatchObject({ category: 'context', evidence: 'unknown' });
});

test('the allocator gives its cache back before it fails, against what NCCL leaves free', () => {
  const device = bare(100 * MiB);
  device.free(device.malloc(60 * MiB, 0, 0));
  const ledger = new CommunicatorLedger(device.account);
  ledger.register('world', calibratedProfile({ atInit: 30 * MiB, provenance: 'test' }));
  // 60 MiB are cached, 10 free: 65 MiB fit once the cache is released.
  const tensor = device.malloc(65 * MiB, 0, 0);
  expect(device.counters.reserved).toBe(66 * MiB);
  device.free(tensor);
  expect(() => device.malloc(80 * MiB, 0, 0)).toThrow(DeviceOutOfMemory);
  try {
    device.malloc(80 * MiB, 0, 0);
  } catch (error) {
    const failure = error as DeviceOutOfMemory;
    expect(failure.kind).toBe('allocator');
    expect(failure.requestedBytes).toBe(80 * MiB);
    expect(failure.message).toContain(
      'Tried to allocate 80.00 MiB. GPU 0 has a total capacity of 100.00 MiB of which 70.00 MiB is free. ' +
        'Including non-PyTorch memory, this process has 30.00 MiB memory in use.',
    );
  }
});

test('NCCL memory that does not fit is an NCCL out-of-memory, and nothing of it stays', () => {
  const device = new GpuDevice({
    capacity: capacityOf(findGpu('h100')),
    nccl: nccl('dgx-h100'),
  });
  device.createCommunicator(group(1, [0, 1, 2, 3, 4, 5, 6, 7]));
  const tensors = [device.malloc(78 * GiB, 0, 0), device.malloc(200 * MiB, 0, 0)];
  device.free(tensors[1]);
  const before = device.counters.external;
  const call = () => device.beginCollective(collective(1, 4096), 'all_to_all');
  expect(call).toThrow(/^NCCL out of memory: all_to_all of 4.00 KiB on group 1 needs /);
  expect(call).toThrow(/PyTorch has 200.00 MiB cached, which it does not give back for this/);
  expect(device.counters.external).toBe(before);
  device.free(tensors[0]);
  device.emptyCache();
  call();
  expect(device.counters.external).toBeGreaterThan(before + 2900 * MiB);
});

test('a component that does not fit says what it is', () => {
  const device = bare(10 * MiB);
  const entry: EventOf<'external_alloc'> = {
    type: 'external_alloc',
    external: 'scratch',
    device: 1,
    category: 'library',
    bytes: 11 * MiB,
    detail: { evidence: 'assumed', provenance: 'test' },
  };
  expect(() => device.allocExternal(entry)).toThrow(/library "scratch" needs 11.00 MiB/);
  expect(device.counters.external).toBe(0);
  device.allocExternal({ ...entry, bytes: 9 * MiB });
  expect(device.counters.external).toBe(9 * MiB);
  device.freeExternal('scratch');
  expect(device.counters.external).toBe(0);
});

test('a measured residual that holds NCCL is refused beside a model of NCCL', () => {
  const components = parseComponents(
    [
      {
        name: 'driver used minus reserved',
        category: 'residual',
        includes: ['context', 'nccl'],
        bytes: '2408.375MiB',
        lifetime: 'persistent',
        evidence: 'calibrated',
        provenance: 'two GB200',
      },
    ],
    'test',
  );
  const capacity = capacityOf(findGpu('gb200'));
  expect(() => new GpuDevice({ capacity, components, nccl: nccl('gb200-nvl72') })).toThrow(
    /measured with nccl in it .* cannot be modelled beside it/,
  );
  expect(new GpuDevice({ capacity, components }).counters.external).toBe(2408.375 * MiB);
});

test('a component needs every field', () => {
  const partial = [{ name: 'x', category: 'library', bytes: 1, lifetime: 'persistent' }];
  expect(() => parseComponents(partial, 'file')).toThrow(/evidence[\s\S]*provenance/);
});

test('property: resident is the sum of its parts at every instant, and what is left after destroying all is the process', () => {
  const step = fc.oneof(
    fc.record({ do: fc.constant('malloc' as const), size: fc.integer({ min: 1, max: 64 * MiB }) }),
    fc.record({ do: fc.constant('free' as const), which: fc.nat(20) }),
    fc.record({
      do: fc.constant('create' as const),
      size: fc.constantFrom(1, 2, 4, 8, 16),
      eager: fc.boolean(),
    }),
    fc.record({
      do: fc.constant('call' as const),
      which: fc.nat(5),
      kind: fc.constantFrom('all_reduce', 'all_gather', 'all_to_all', 'send', 'recv', 'broadcast'),
      size: fc.constantFrom(4, 4096, 1 * MiB, 32 * MiB, 512 * MiB),
    }),
    fc.record({ do: fc.constant('destroy' as const), which: fc.nat(5) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      const device = new GpuDevice({
        capacity: capacityOf(findGpu('h200')),
        nccl: nccl('hgx-h200'),
      });
      const blocks: ReturnType<GpuDevice['malloc']>[] = [];
      const groups: number[] = [];
      let next = 1;
      for (const action of steps) {
        if (action.do === 'malloc') blocks.push(device.malloc(action.size, 0, 0));
        else if (action.do === 'free') {
          const [block] = blocks.splice(action.which, 1);
          if (block) device.free(block);
        } else if (action.do === 'create') {
          const ranks = Array.from({ length: action.size }, (_, i) => i);
          device.createCommunicator(group(next, ranks, action.eager));
          groups.push(next++);
        } else if (action.do === 'call' && groups.length > 0) {
          const id = groups[action.which % groups.length];
          device.beginCollective(collective(id, action.size, 1), action.kind);
        } else if (action.do === 'destroy') {
          const [id] = groups.splice(action.which, 1);
          if (id !== undefined) device.destroyCommunicator(id);
        }
        const parts = device.externalParts();
        const sum = (bound: 'low' | 'bytes' | 'high') =>
          parts.reduce((total, part) => total + part[bound], 0);
        expect(device.counters.external).toBeCloseTo(sum('bytes'), 0);
        expect(device.counters.externalLow).toBeCloseTo(sum('low'), 0);
        expect(device.counters.externalHigh).toBeCloseTo(sum('high'), 0);
        const { externalLow, external, externalHigh } = device.counters;
        expect(externalLow <= external && external <= externalHigh).toBe(true);
      }
      for (const id of groups) device.destroyCommunicator(id);
      const left = device.externalParts().map(({ name }) => name);
      const process = ['CUDA context', 'NCCL kernel code', 'NCCL kernel local memory'];
      expect(left.filter((name) => !process.includes(name))).toEqual([]);
    }),
    { numRuns: 150 },
  );
});

test('the bound decides what counts against the capacity', () => {
  const used = (bound: keyof Band) =>
    new GpuDevice({ capacity: capacityOf(findGpu('h100')), bound }).allocator;
  // A tensor that fits beside the least context but not beside the most.
  const size = findGpu('h100').usableBytes - 500 * MiB;
  expect(() => used('low').malloc(size)).not.toThrow();
  expect(() => used('high').malloc(size)).toThrow(/CUDA out of memory/);
});
