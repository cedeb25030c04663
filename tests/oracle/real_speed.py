"""Times the real CUDACachingAllocator on lists of allocations and frees.

    python real_speed.py EVENTS.json

EVENTS.json: capacity (bytes), conf, repeats, and `start` and `step`, each with slots, sizes (0 frees the slot) and slot_count.
Plays `start` once and `step` to warm up, then `step` `repeats` times. Prints {"seconds": …, "reserved": …}.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

from fake_cuda.build import BUILD, CannotBuildError, build, cuda_headers
from fake_cuda.preload import FakeDevices, Preload, start_again

SOURCE = Path(__file__).resolve().parent / "real_speed.cpp"


def compile_replay(torch_folder: Path) -> Path:
    """The compiled loop; made anew when its source is newer."""
    target = BUILD / "librealspeed.so"
    if target.exists() and target.stat().st_mtime > SOURCE.stat().st_mtime:
        return target
    libraries = torch_folder / "lib"
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(target)]
    command += [f"-I{torch_folder / 'include'}", f"-I{cuda_headers()}"]
    command += [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10_cuda", "-lc10"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotBuildError(done.stderr)
    return target


def main() -> None:
    """Runs the command line."""
    events: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    build()
    variables = FakeDevices(capacity=events["capacity"]).environment()
    if events["conf"]:
        variables["PYTORCH_ALLOC_CONF"] = events["conf"]
    start_again(Preload(), variables)
    import torch

    torch.cuda.init()
    library = ctypes.CDLL(str(compile_replay(Path(torch.__file__).parent)))
    library.replay.restype = ctypes.c_double

    def play(events: dict[str, Any], repeats: int) -> float:
        slots = array("i", events["slots"])
        sizes = array("d", events["sizes"])
        return float(
            library.replay(
                ctypes.c_void_p(slots.buffer_info()[0]),
                ctypes.c_void_p(sizes.buffer_info()[0]),
                ctypes.c_int64(len(slots)),
                ctypes.c_int64(repeats),
                ctypes.c_int32(events["slot_count"]),
            )
        )

    play(events["start"], 1)
    play(events["step"], 5)
    seconds = play(events["step"], events["repeats"])
    print(json.dumps({"seconds": seconds, "reserved": torch.cuda.memory_reserved()}))


if __name__ == "__main__":
    main()
