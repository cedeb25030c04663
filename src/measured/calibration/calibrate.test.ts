import { expect, test } from 'vitest';
import { MiB } from '../../base/bytes.ts';
import type { CaptureHeader, CaptureMark, CaptureReading } from '../capture/capture_schema.ts';
import { calibrate, configurationOf } from './calibrate.ts';
import { applyProfile, profileSchema, topologyDifferences } from './profile.ts';

const TOTAL = 186 * 1024 * MiB;

/** A reading with so many MiB outside the allocator, and NCCL's own total when it says one. */
function reading(external: number, nccl?: number): CaptureReading {
  const reserved = 1000 * MiB;
  return {
    requested: 0,
    allocated: 0,
    active: 0,
    reserved,
    allocs: 0,
    frees: 0,
    frees_completed: 0,
    driver_total: TOTAL,
    driver_free: TOTAL - reserved - external * MiB,
    process_used: null,
    device_used: null,
    nccl: nccl === undefined ? null : { 0: { total: nccl * MiB, persist: 0 } },
  };
}

function phase(name: string, at: CaptureReading, labels = {}): CaptureMark[] {
  return [
    { kind: 'begin', time: 0, phase: 1, name, labels, reading: null },
    { kind: 'end', time: 1, phase: 1, reading: at, owners: [], exception: null },
  ];
}

function header(
  rank: number,
  marks: CaptureMark[],
  changes: Partial<CaptureHeader> = {},
): CaptureHeader {
  return {
    memtracker: '0.1.0',
    framework: 'script',
    purpose: 'calibration',
    created: `2026-10-0${rank + 1}T00:00:00Z`,
    rank,
    world: 2,
    local_rank: rank,
    gpus_per_node: 2,
    argv: ['train.py'],
    cwd: '/job',
    device: rank,
    gpu: {
      name: 'NVIDIA GB200',
      capability: [10, 0],
      total_memory: TOTAL,
      multi_processor_count: 152,
    },
    versions: { python: '3.12', torch: '2.14.1', cuda: '13.0', nccl: '2.30.7', driver: '615.74' },
    environment: {},
    history: { max_entries: null, stacks: 'python' },
    disturbed_by: [],
    marks,
    end: reading(0),
    ended: { how: 'done', error: '' },
    facts: {},
    communicators: [{ name: '0', ranks: [0, 1] }],
    ...changes,
  };
}

// The figures of the two ranks of elfiegg/memTracker's GB200 calibration (October 2026), rounded to whole MiB.
const RANKS = [
  header(0, [...phase('init', reading(800)), ...phase('all_reduce', reading(2470, 560))]),
  header(1, [...phase('init', reading(800)), ...phase('all_reduce', reading(1778, 560))]),
];

test('each phase is a band over the ranks, split into what is explained and a residual', () => {
  const profile = calibrate('gb200-2', RANKS);
  expect(() => profileSchema.parse(profile)).not.toThrow();
  const [init, collective] = profile.phases;
  expect(init).toMatchObject({
    phase: 'init',
    samples: 2,
    measured: { low: 800 * MiB, likely: 800 * MiB, high: 800 * MiB },
  });
  expect(collective.measured).toEqual({ low: 1778 * MiB, likely: 1778 * MiB, high: 2470 * MiB });
  expect(collective.explained.map(({ name }) => name)).toEqual([
    'CUDA context',
    'NCCL, by its own statistics',
  ]);
  const explained = collective.explained.reduce((sum, { bytes }) => sum + Number(bytes.likely), 0);
  expect(collective.residual.likely).toBe(1778 * MiB - explained);
});

test('the component holds everything outside the allocator and says where it was measured', () => {
  const { components, topology, measured } = calibrate('gb200-2', RANKS);
  expect(components[0]).toMatchObject({
    category: 'residual',
    evidence: 'calibrated',
    bytes: { low: 1778 * MiB, likely: 1778 * MiB, high: 2470 * MiB },
  });
  expect(components[0].provenance).toContain('driver 615.74');
  expect(topology).toEqual({ gpu: 'NVIDIA GB200', world: 2, gpus_per_node: 2, groups: [2] });
  expect(measured).toEqual({ first: '2026-10-01T00:00:00Z', last: '2026-10-02T00:00:00Z' });
});

test('runs for validation, of another topology or of another version are refused', () => {
  const [first, second] = RANKS;
  expect(() => calibrate('x', [first, { ...second, purpose: 'validation' }])).toThrow(
    '1 of 2 files were captured for validation',
  );
  expect(() => calibrate('x', [first, { ...second, world: 4 }])).toThrow('different topologies');
  const versions = { ...second.versions, nccl: '2.27.5' };
  expect(() => calibrate('x', [first, { ...second, versions }])).toThrow('different nccl versions');
  expect(() => calibrate('x', [header(0, [])])).toThrow('no phase boundary has a reading');
});

test('a residual below zero is kept: the formulas then say too much', () => {
  const small = [header(0, phase('init', reading(500)))];
  expect(calibrate('x', small).phases[0].residual.likely).toBeLessThan(0);
});

test('another topology is refused by what differs, or used as an assumption when asked to', () => {
  const profile = profileSchema.parse(calibrate('gb200-2', RANKS));
  const same = { gpu: 'gb200', world: 2, gpus_per_node: 2, groups: [2] };
  expect(applyProfile(profile, same).components[0].evidence).toBe('calibrated');
  const wider = { ...same, world: 256, groups: [8, 32] };
  expect(topologyDifferences(profile.topology, wider)).toEqual([
    '2 ranks instead of 256',
    'process groups of 2 ranks instead of 8, 32',
  ]);
  expect(() => applyProfile(profile, wider)).toThrow('was measured on another topology');
  const { components, notes } = applyProfile(profile, wider, { extrapolate: true });
  expect(components[0]).toMatchObject({ evidence: 'assumed' });
  expect(notes[0]).toContain('extrapolated');
});

test('a configuration is the same on every rank and day, and another with other arguments', () => {
  const [first, second] = RANKS;
  expect(configurationOf(first)).toBe(configurationOf(second));
  expect(configurationOf({ ...first, argv: ['train.py', '--layers', '8'] })).not.toBe(
    configurationOf(first),
  );
});
