import { expect, test } from 'vitest';
import type { ModuleMeta, Trace } from '../trace/trace.ts';
import { ModuleNames, repeatedName, withoutWrapperSegments } from './module_name.ts';

function names(...modules: [name: string, className: string, parent: number][]): ModuleNames {
  const metas: (ModuleMeta | undefined)[] = [undefined];
  for (const [name, className, parent] of modules) {
    metas.push({ id: metas.length, name, className, parent });
  }
  return new ModuleNames({ modules: metas } as unknown as Trace);
}

test('segments of FSDP1, checkpoint_wrapper and torch.compile are taken out', () => {
  expect(
    withoutWrapperSegments('layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.attention.wq'),
  ).toBe('layers.0.attention.wq');
  expect(withoutWrapperSegments('_orig_mod.layers.3')).toBe('layers.3');
});

test("a module that the user called 'module' keeps its name", () => {
  const cleaned = names(['', 'MyModel', 0], ['module', 'Encoder', 1], ['module.proj', 'Linear', 2]);
  expect(cleaned.of(3)).toBe('module.proj');
});

test("Megatron's DDP and Float16Module leave no trace in a name", () => {
  const cleaned = names(
    ['', 'DistributedDataParallel', 0],
    ['module', 'Float16Module', 1],
    ['module.module', 'GPTModel', 2],
    ['module.module.decoder', 'TransformerBlock', 3],
  );
  expect([1, 2, 3, 4].map((id) => cleaned.of(id))).toEqual(['', '', '', 'decoder']);
});

test('a wrapper at the top that stands under its class name is the root', () => {
  const cleaned = names(
    ['DistributedDataParallel', 'DistributedDataParallel', 0],
    ['module', 'Float16Module', 1],
    ['module.module', 'GPTModel', 2],
    ['module.module.output_layer', 'ColumnParallelLinear', 3],
  );
  expect([1, 2, 3, 4].map((id) => cleaned.of(id))).toEqual(['', '', '', 'output_layer']);
});

test('numbers of repeated layers become a star', () => {
  expect(repeatedName('decoder.layers.11.mlp.experts.3')).toBe('decoder.layers.*.mlp.experts.*');
  expect(repeatedName('conv1.block2')).toBe('conv1.block2');
});
