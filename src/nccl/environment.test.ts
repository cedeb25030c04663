import { expect, test } from 'vitest';
import { readEnvironment } from './environment.ts';
import { DEFAULT_RELEASE } from './release.ts';

const read = (env: Record<string, string>, strict = true) =>
  readEnvironment(env, DEFAULT_RELEASE, { strict });

test('numbers are read as NCCL reads them, -2 is not set', () => {
  expect(read({ NCCL_BUFFSIZE: '0x100000' }).buffSize).toBe(1048576);
  expect(read({ NCCL_BUFFSIZE: '-2' }).buffSize).toBe(4194304);
  expect(read({ NCCL_MAX_NCHANNELS: '0' }).maxChannels).toBe(1);
  expect(() => read({ NCCL_BUFFSIZE: '4M' })).toThrow(/must be a whole number, got "4M"/);
});

test('what is honoured, what has no effect and what is not modelled are told apart', () => {
  const env = read({
    NCCL_DEBUG: 'INFO',
    NCCL_NVLS_ENABLE: '0',
    NCCL_TUNER_PLUGIN: 'x.so',
    PATH: '/bin',
  });
  expect(env.honoured).toEqual(['NCCL_NVLS_ENABLE=0']);
  expect(env.withoutEffect).toEqual(['NCCL_DEBUG=INFO']);
  expect(env.notModelled).toEqual(['NCCL_TUNER_PLUGIN=x.so']);
});

test('an unknown variable is an error on the command line, and not modelled in a job', () => {
  expect(() => read({ NCCL_BUFSIZE: '1' })).toThrow(
    /NCCL_BUFSIZE is not a variable.*NCCL_BUFFSIZE/,
  );
  expect(read({ NCCL_BUFSIZE: '1' }, false).notModelled).toEqual(['NCCL_BUFSIZE=1']);
});

test('every way to take GPU memory from the network', () => {
  for (const [name, value] of [
    ['NCCL_IB_DISABLE', '1'],
    ['NCCL_NET', 'Socket'],
    ['NCCL_NET_GDR_LEVEL', 'LOC'],
  ]) {
    expect(read({ [name]: value }).gpuDirect, name).toBe(false);
  }
  expect(read({}).gpuDirect).toBeUndefined();
});
