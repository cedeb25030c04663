"""What PyTorch makes of PYTORCH_ALLOC_CONF texts, one after the other in one process.

    python settings.py < TEXTS.json      a JSON list of texts

Prints a JSON list: the `allocator_settings` of a snapshot taken after each text, or {"error": …}.
"""

from __future__ import annotations

import json
import sys

from fake_cuda.preload import FakeDevices, Preload, start_again


def main() -> None:
    """Runs the command line."""
    start_again(Preload(), FakeDevices(capacity=1 << 30).environment())
    import torch

    torch.cuda.init()
    rows: list[dict[str, object]] = []
    for text in json.load(sys.stdin):
        try:
            torch._C._accelerator_setAllocatorSettings(text)
        except (ValueError, RuntimeError) as error:
            rows.append({"error": str(error).splitlines()[0]})
        else:
            rows.append(torch._C._cuda_memorySnapshot(None)["allocator_settings"])
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
