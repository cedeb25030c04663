import { expect, test } from 'vitest';
import { parseIdentity, resolveIdentity } from './run_identity.ts';

test('flags win over the file, the file over the profile, and a profile is only assumed', () => {
  const identity = resolveIdentity({
    flags: { nccl: '2.30.7' },
    file: { nccl: '2.27.5', cuda: '13.0' },
    profile: { cuda: '12.8', pytorch: '2.14.1' },
  });
  expect(identity.nccl).toEqual({ value: '2.30.7', from: 'flag', evidence: 'declared' });
  expect(identity.cuda).toEqual({ value: '13.0', from: 'file', evidence: 'declared' });
  expect(identity.pytorch).toEqual({ value: '2.14.1', from: 'profile', evidence: 'assumed' });
  expect(identity.container).toEqual({ value: null, from: 'unknown', evidence: 'unknown' });
});

test('null suppresses what lies below', () => {
  const identity = resolveIdentity({ flags: { torchao: null }, profile: { torchao: '0.18.0' } });
  expect(identity.torchao).toEqual({ value: null, from: 'suppressed', evidence: 'unknown' });
});

test('an unknown component is refused by name', () => {
  expect(() => parseIdentity({ ncll: '2.30' }, 'identity.json')).toThrow(/identity\.json: .*ncll/);
  expect(() => parseIdentity({ cuda: 13 }, 'identity.json')).toThrow(/cuda/);
});
