"""Compiles the fake CUDA with the system compiler into tests/oracle/build (ignored by git).

    python tests/oracle/fake_cuda/build.py        # prints the folder; does nothing when it is up to date

Needs g++, gcc and CUDA 13 headers: CUDA_HOME's, or those that come with torch's Triton.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
BUILD = SOURCES.parent / "build"


class CannotBuildError(Exception):
    """Something that the build needs is missing; the message says what."""


@dataclass(frozen=True)
class Libraries:
    """The compiled fake."""

    runtime: Path
    """The cudart entry points and the driver's virtual memory calls: preload it."""
    cublas: Path
    """cuBLAS that computes nothing: preload it after the runtime to run eager ATen code."""
    folder: Path
    """Holds libcuda.so.1 and libnvidia-ml.so.1: put it on LD_LIBRARY_PATH."""


def build() -> Libraries:
    """Compiles what is missing or older than its sources. Safe to call from several processes.

    Raises CannotBuildError when there is no compiler or no CUDA 13 header.
    """
    libraries = Libraries(
        runtime=BUILD / "libfakecuda.so",
        cublas=BUILD / "libfakecublas.so",
        folder=BUILD / "lib",
    )
    libraries.folder.mkdir(parents=True, exist_ok=True)
    with open(BUILD / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runtime_sources = [SOURCES / name for name in ("state.cpp", "memory.cpp", "streams.cpp")]
        if _is_stale(libraries.runtime, [*runtime_sources, SOURCES / "state.h"]):
            _compile(
                [
                    "g++",
                    "-std=c++17",
                    "-O2",
                    "-fvisibility=hidden",
                    "-static-libstdc++",
                    "-static-libgcc",
                ],
                [f"-I{cuda_headers()}"],
                runtime_sources,
                libraries.runtime,
            )
        # Every entry point of the stubs takes fewer parameters than the real one: no warnings about builtins.
        gcc = ["gcc", "-O1"]
        stubs = {
            SOURCES / "fake_cublas.c": (libraries.cublas, []),
            SOURCES / "stub_libcuda.c": (
                libraries.folder / "libcuda.so.1",
                ["-Wl,-soname,libcuda.so.1"],
            ),
            SOURCES / "fake_nvml.c": (
                libraries.folder / "libnvidia-ml.so.1",
                ["-Wl,-soname,libnvidia-ml.so.1"],
            ),
        }
        for source, (target, flags) in stubs.items():
            if _is_stale(target, [source]):
                _compile(gcc, flags, [source], target)
    return libraries


def _is_stale(target: Path, sources: list[Path]) -> bool:
    if not target.exists():
        return True
    built = target.stat().st_mtime
    return any(source.stat().st_mtime > built for source in sources)


def _compile(compiler: list[str], flags: list[str], sources: list[Path], target: Path) -> None:
    if shutil.which(compiler[0]) is None:
        raise CannotBuildError(f"{compiler[0]} is not installed")
    unfinished = target.with_suffix(".tmp")
    command = [
        *compiler,
        "-shared",
        "-fPIC",
        *flags,
        *map(str, sources),
        "-ldl",
        "-o",
        str(unfinished),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuildError(f"{' '.join(command)} failed:\n{done.stderr}")
    unfinished.replace(target)


def cuda_headers() -> Path:
    """A folder with the headers of CUDA 13, whose structures PyTorch's CUDA 13 build expects."""
    candidates = list(_header_folders())
    for folder in candidates:
        header = folder / "cuda_runtime_api.h"
        if header.exists() and (folder / "crt").exists() and _is_cuda_13(header):
            return folder
    raise CannotBuildError(f"no CUDA 13 headers in {', '.join(map(str, candidates))}")


def _header_folders() -> Iterator[Path]:
    if "CUDA_HOME" in os.environ:
        yield Path(os.environ["CUDA_HOME"]) / "include"
    yield Path("/usr/local/cuda/include")
    triton = importlib.util.find_spec("triton")
    if triton is not None and triton.origin is not None:
        yield Path(triton.origin).parent / "backends" / "nvidia" / "include"


def _is_cuda_13(header: Path) -> bool:
    text = header.read_text(encoding="utf-8", errors="replace")
    return any(
        line.split()[:2] == ["#define", "CUDART_VERSION"] and line.split()[2][:2] == "13"
        for line in text.splitlines()
    )


if __name__ == "__main__":
    try:
        print(build().folder.parent)
    except CannotBuildError as error:
        sys.exit(str(error))
