// Expands the matrix of a specification into variations: concrete jobs, each with a label that names what varies.

import { resolve } from 'node:path';
import { UserError } from '../base/errors.ts';
import { findAdapter } from '../sidecar/adapter.ts';
import { argumentList, setArgument } from './arguments.ts';
import {
  type FitSpec,
  type Margin,
  marginSchema,
  type SCENARIOS,
  type SpecScalar,
  type World,
  worldOf,
} from './spec.ts';

/** One concrete job and the device that it is asked to fit on. */
export interface Variation {
  /** What the matrix set, in its order; empty for a specification without a matrix. */
  readonly setting: Readonly<Record<string, SpecScalar | null>>;
  readonly framework: string;
  readonly checkout: string | null;
  readonly argv: readonly string[];
  readonly cwd: string;
  readonly world: World;
  readonly gpu: string;
  readonly steps: number;
  readonly ranks: FitSpec['ranks'];
  readonly margin: Margin;
  readonly allocator: string;
  readonly nccl: FitSpec['nccl'];
  readonly external: FitSpec['external'];
  readonly profile: string | undefined;
  readonly options: Readonly<Record<string, SpecScalar>>;
  readonly environment: Readonly<Record<string, string>>;
  readonly scenario: (typeof SCENARIOS)[number];
}

/** `gpu=h100-80gb, training.local_batch_size=2`; `the job` when nothing varies. */
export function labelOf(variation: Variation): string {
  const parts = Object.entries(variation.setting).map(
    ([key, value]) => `${key}=${value ?? 'unset'}`,
  );
  if (variation.scenario !== 'steady') parts.push(`scenario=${variation.scenario}`);
  return parts.length === 0 ? 'the job' : parts.join(', ');
}

/** All variations in matrix order, the last key fastest. @throws UserError for a value that a key cannot take. */
export function expand(spec: FitSpec, folder: string): Variation[] {
  const base = baseVariation(spec, folder);
  let settings: Record<string, SpecScalar | null>[] = [{}];
  for (const [key, values] of Object.entries(spec.matrix)) {
    settings = settings.flatMap((setting) => values.map((value) => ({ ...setting, [key]: value })));
  }
  for (const key of spec.exclude.flatMap(Object.keys)) {
    if (key in spec.matrix) continue;
    const there = Object.keys(spec.matrix).join(', ') || 'none';
    throw new UserError(
      'SPEC_EXCLUDE',
      `exclude names ${key}, which is no key of the matrix; its keys: ${there}`,
    );
  }
  const kept = settings.filter(
    (setting) =>
      !spec.exclude.some((rule) =>
        Object.entries(rule).every(([key, value]) => setting[key] === value),
      ),
  );
  if (kept.length === 0) {
    throw new UserError(
      'SPEC_EXCLUDE',
      'exclude leaves no combination of the matrix; take a rule away',
    );
  }
  return spec.scenarios.flatMap((scenario) =>
    kept.map((setting) => {
      let variation: Variation = { ...base, scenario };
      for (const [key, value] of Object.entries(scenarioArguments(spec.framework, scenario))) {
        variation = { ...variation, argv: setArgument(variation.argv, key, value) };
      }
      for (const [key, value] of Object.entries(setting)) variation = vary(variation, key, value);
      return variation;
    }),
  );
}

/** Arguments that switch a scenario on. @throws UserError when the framework's manifest has none for it. */
function scenarioArguments(
  framework: string,
  scenario: Variation['scenario'],
): Readonly<Record<string, SpecScalar | null>> {
  if (scenario === 'steady' || scenario === 'first_step') return {};
  const { scenarios } = findAdapter(framework).manifest;
  const found = scenarios[scenario];
  if (found !== undefined) return found;
  const known = ['steady', 'first_step', ...Object.keys(scenarios)].join(', ');
  throw new UserError(
    'SCENARIO',
    `${framework} has no switch for the scenario ${scenario}; there are ${known}. Give the framework's own arguments instead`,
  );
}

export function baseVariation(spec: FitSpec, folder: string): Variation {
  return {
    setting: {},
    framework: spec.framework,
    checkout: spec.checkout === undefined ? null : resolve(folder, spec.checkout),
    argv: argumentList(spec.arguments),
    cwd: resolve(folder),
    world: worldOf(spec.world),
    gpu: spec.gpu,
    steps: spec.steps,
    ranks: spec.ranks,
    margin: spec.margin,
    allocator: spec.allocator,
    nccl: spec.nccl,
    external: spec.external,
    profile: profileOf(spec.profile, folder),
    options: spec.options,
    environment: spec.environment,
    scenario: spec.scenarios[0],
  };
}

/** A path is relative to the specification, as every other; a name is left alone. */
function profileOf(profile: string | undefined, folder: string): string | undefined {
  return profile !== undefined && /[/\\]|\.json$/.test(profile)
    ? resolve(folder, profile)
    : profile;
}

/** `variation` with one key of the matrix set. @throws UserError when the key cannot take the value. */
export function vary(variation: Variation, key: string, value: SpecScalar | null): Variation {
  const setting = { ...variation.setting, [key]: value };
  const text = () => {
    if (typeof value !== 'string') throw refused(key, value, 'a text');
    return value;
  };
  const whole = (minimum: number) => {
    if (typeof value !== 'number' || !Number.isInteger(value) || value < minimum) {
      throw refused(key, value, `a whole number of at least ${minimum}`);
    }
    return value;
  };
  switch (key) {
    case 'gpu':
      return { ...variation, setting, gpu: value === null ? variation.gpu : String(value) };
    case 'world':
      return { ...variation, setting, world: worldOf(whole(1)) };
    case 'nodes': {
      const gpusPerNode = variation.world.gpusPerNode;
      return { ...variation, setting, world: { ranks: whole(1) * gpusPerNode, gpusPerNode } };
    }
    case 'steps':
      return { ...variation, setting, steps: whole(2) };
    case 'allocator':
      return { ...variation, setting, allocator: value === null ? '' : text() };
    case 'margin': {
      const margin = marginSchema.safeParse(value);
      if (!margin.success) throw refused(key, value, 'a size or a percentage');
      return { ...variation, setting, margin: margin.data };
    }
    case 'nccl.version':
      // A number has lost its last zero: YAML and JavaScript read 2.30 as 2.3.
      if (typeof value !== 'string') throw refused(key, value, 'a text; put the version in quotes');
      return { ...variation, setting, nccl: { ...variation.nccl, version: value } };
    case 'nccl.topology':
      return { ...variation, setting, nccl: { ...variation.nccl, topology: text() } };
  }
  if (key.startsWith('options.')) {
    const { [key.slice(8)]: _, ...rest } = variation.options;
    const options = value === null ? rest : { ...rest, [key.slice(8)]: value };
    return { ...variation, setting, options };
  }
  if (key.startsWith('env.')) {
    const { [key.slice(4)]: _, ...rest } = variation.environment;
    const environment = value === null ? rest : { ...rest, [key.slice(4)]: String(value) };
    return { ...variation, setting, environment };
  }
  return { ...variation, setting, argv: setArgument(variation.argv, key, value) };
}

function refused(key: string, value: unknown, allowed: string): UserError {
  return new UserError('SPEC_VALUE', `matrix.${key}: ${JSON.stringify(value)} is not ${allowed}`);
}
