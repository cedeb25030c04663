import { expect, test } from 'vitest';
import { argumentValue, setArgument, splitArguments } from './arguments.ts';

test('a line is split as a POSIX shell splits it', () => {
  expect(splitArguments(`--a 1  --b='x y' "c \\"d" e\\ f`)).toEqual([
    '--a',
    '1',
    '--b=x y',
    'c "d',
    'e f',
  ]);
  expect(() => splitArguments('--a "b')).toThrow('not closed');
});

test('an argument is replaced where it stood, in the form that it had', () => {
  expect(setArgument(['--x', '1', '--y=2', '--z'], 'x', 3)).toEqual(['--x', '3', '--y=2', '--z']);
  expect(setArgument(['--x', '1', '--y=2', '--z'], '--y', 'q')).toEqual([
    '--x',
    '1',
    '--y=q',
    '--z',
  ]);
});

test('all values of a list argument go', () => {
  expect(setArgument(['--split', '1', '2', '-3', '--z'], 'split', 9)).toEqual([
    '--split',
    '9',
    '--z',
  ]);
});

test('an absent argument is appended, true is a bare flag, false and null take it away', () => {
  expect(setArgument(['a.py'], 'lr', 0.1)).toEqual(['a.py', '--lr', '0.1']);
  expect(setArgument(['a.py'], 'fast', true)).toEqual(['a.py', '--fast']);
  expect(setArgument(['a.py', '--fast'], 'fast', false)).toEqual(['a.py']);
  expect(setArgument(['a.py', '--lr', '0.1'], 'lr', null)).toEqual(['a.py']);
});

test('the value of the last occurrence counts, negative numbers are values', () => {
  expect(argumentValue(['--x', '1', '--x', '-2'], 'x')).toBe('-2');
  expect(argumentValue(['--x=1', '--flag'], 'flag')).toBe(true);
  expect(argumentValue([], 'x')).toBeUndefined();
});

test('a subcommand is one word, and flags of the program stand before it', () => {
  const argv = ['--module', 'llama3', 'activation-checkpoint:selective'];
  expect(setArgument(argv, 'activation-checkpoint:', 'full')).toEqual([
    '--module',
    'llama3',
    'activation-checkpoint:full',
  ]);
  expect(setArgument(argv, 'compile.enable', true)).toEqual([
    '--module',
    'llama3',
    '--compile.enable',
    'activation-checkpoint:selective',
  ]);
  expect(argumentValue(argv, 'activation-checkpoint:')).toBe('selective');
  expect(setArgument(argv, 'activation-checkpoint:', null)).toEqual(['--module', 'llama3']);
});
