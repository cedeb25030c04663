// Python stacks in words. The frames of PyTorch itself say how memory was taken, the first one outside says who took it.

import { framesOf, type Trace } from '../trace/trace.ts';

export interface Frame {
  readonly file: string;
  readonly function: string;
  readonly line: number;
}

/** PyTorch and the standard library; other packages (a framework, a kernel library) are callers worth naming. */
const LIBRARY = /(^|\/)torch\/|\/lib\/python3\.\d+\/(?!(site|dist)-packages\/)/;
/** The wrappers that this program puts around a framework's functions. */
const OWN = /\/memtracker_sidecar\/|\/adapters\/(torchtitan|megatron|script)\/\w+\.py$/;

export function isLibraryFrame(frame: Frame): boolean {
  return LIBRARY.test(frame.file) || isOwnFrame(frame);
}

/** A frame of this program, which a run without it would not have. */
export function isOwnFrame(frame: Frame): boolean {
  return OWN.test(frame.file);
}

/** The innermost frame of the user's or the framework's code; the innermost at all when there is none. */
export function callSite(trace: Trace, stack: number): Frame | undefined {
  const frames = framesOf(trace, stack);
  return frames.find((frame) => !isLibraryFrame(frame)) ?? frames[0];
}

/** `model.py:210 forward`: the file's last two folders are kept, so that `torchtitan/train.py` is told from `train.py`. */
export function frameText(frame: Frame | undefined): string {
  if (frame === undefined) return '(no stack)';
  return `${shortPath(frame.file)}:${frame.line} ${frame.function}`;
}

function shortPath(file: string): string {
  return file.split('/').slice(-2).join('/');
}
