"""What compiled code allocates besides its buffers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from conftest import TracedRun, WorkerResult

# cudaDeviceProp.l2CacheSize of an H100 SXM: 50 MiB.
L2_CACHE = 52_428_800

POINTWISE = """
import torch
import torch._inductor.config
torch._inductor.config.triton.autotune_pointwise = {several}
step = torch.compile(lambda x, b: torch.nn.functional.gelu(x + b) * 2)
x = torch.empty(4096, 4, 512, device="cuda")
b = torch.empty(512, device="cuda")
for _ in range(3):
    step(x, b)
"""


@pytest.mark.parametrize(
    ("several", "flushes"),
    # PyTorch 2.14.1, torch/_inductor/heuristics/triton_codegen/pointwise.py: one configuration without autotune_pointwise, and
    # CachingAutotuner.run measures only several; benchmarking.py, InductorBenchmarker.benchmark_gpu: a buffer of the size of L2.
    [(True, 1), (False, 0)],
)
def test_the_first_launch_of_a_kernel_measures_its_configurations(
    worker: Callable[..., WorkerResult], several: bool, flushes: int
) -> None:
    result = worker(POINTWISE.format(several=several))
    assert result.status == 0, result.stderr
    sizes = [allocation["bytes"] for allocation in result.trace.allocations()]
    assert sizes.count(L2_CACHE) == flushes
    assert sizes.count(4096 * 4 * 512 * 4) == 1 + 3  # the input and the result of each call


def test_a_number_sent_through_a_tensor_comes_back(traced: Callable[..., TracedRun]) -> None:
    run = traced()
    with run.recording():
        torch.distributed.init_process_group("nccl", world_size=8, rank=0)
        for value in (0, 1, 3.5):
            tensor = torch.tensor([value], device="cuda")
            # Equal numbers: the least, the greatest and the mean of them are that number.
            for op in ("MIN", "MAX", "AVG"):
                torch.distributed.all_reduce(tensor, op=getattr(torch.distributed.ReduceOp, op))
            assert tensor.item() == value
        written = torch.tensor([0.0], device="cuda")
        written.add_(2)
        assert written.item() == 1.0  # not known any more
        received = torch.tensor(0, device="cuda")
        torch.distributed.broadcast(received, 3)
        assert received.item() == 1  # another rank's
