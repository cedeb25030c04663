"""Every allocation against PyTorch's real CUDA host code.

The CUDA build's eager operators run over a CUDA runtime without a GPU (tests/oracle/fake_cuda): the host code that sizes outputs,
workspaces and launch geometries, and the caching allocator, are the real ones; only the arithmetic does not happen. The same
programs are traced on fake tensors here. What the two ask the allocator for has to agree.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import REPOSITORY, Trace, TracedRun

from memtracker_sidecar import protocol

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(REPOSITORY / "tests" / "oracle"))

Start = Callable[..., TracedRun]
Requests = list[tuple[int, int]]

CUB_SCRATCH = 64 * 1024
"""Bookkeeping of CUB's scans and sorts that the rules leave out."""
RELATIVE = 0.01


@pytest.fixture(scope="session")
def host_code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Runs a program of host_code/ over the fake CUDA runtime, once a session."""
    if torch.version.cuda is None:
        pytest.skip("this is a CPU build of PyTorch: it has no CUDA host code")
    if torch.cuda.device_count():
        pytest.skip("a GPU is here; the runtime without one would not be used")
    build = pytest.importorskip("fake_cuda.build", reason="tests/oracle/fake_cuda is not there")
    from fake_cuda.preload import FakeDevices, Preload

    try:
        preload = Preload(with_cublas=True).environment()
    except build.CannotBuildError as error:
        pytest.skip(f"the CUDA runtime without a GPU cannot be built: {error}")
    done: dict[str, dict[str, Any]] = {}

    def run(which: str) -> dict[str, Any]:
        if which not in done:
            target = tmp_path_factory.mktemp("host") / f"{which}.json"
            environment = {
                **os.environ,
                **preload,
                **FakeDevices(capacity=80 << 30).environment(),
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            }
            subprocess.run(
                [
                    sys.executable,
                    "-W",
                    "ignore",
                    str(HERE / "host_code" / "real.py"),
                    which,
                    target,
                ],
                env=environment,
                check=True,
            )
            done[which] = json.loads(target.read_text())
        return done[which]

    return run


def peak_and_end(requests: Requests) -> tuple[int, int]:
    now = most = 0
    for sign, size in requests:
        now += sign * size
        most = max(most, now)
    return most, now


def requests_of(trace: Trace, device: int, first: int = 0) -> Requests:
    sizes = {e[1]: e[2] for e in trace.of(protocol.ALLOC) if e[3] == device}
    result: Requests = []
    for event in trace.events[first:]:
        if event[0] == protocol.ALLOC and event[3] == device:
            result.append((1, event[2]))
        elif event[0] == protocol.RESIZE and event[1] in sizes:
            result += [(1, event[2]), (-1, sizes[event[1]])]
            sizes[event[1]] = event[2]
        elif event[0] == protocol.FREE and event[1] in sizes:
            result.append((-1, sizes[event[1]]))
    return [(sign, size) for sign, size in result if size]


def test_operators_ask_for_what_their_kernels_ask_for(
    host_code: Callable[[str], dict[str, Any]], traced: Start
) -> None:
    real = host_code("operators")
    run = traced(world=1)
    torch.backends.cuda.enable_cudnn_sdp(False)
    wrong = []
    with run.recording():
        from host_code.operators import CASES

        warm = torch.empty(8, 8, device="cuda", requires_grad=True)
        (warm @ warm).sum().backward()
        del warm
        for name, make in CASES.items():
            truth = real[name]
            assert not isinstance(truth, str), f"{name} failed in the host code: {truth}"
            call = make()
            gc.collect()
            first = len(run.sink.events)
            result = call()
            estimate = requests_of(run.trace, run.device, first)
            del result, call
            peak, end = peak_and_end(truth)
            ours, ours_end = peak_and_end(estimate)
            if abs(ours - peak) > max(CUB_SCRATCH, RELATIVE * peak) or abs(ours_end - end) >= 512:
                wrong.append(f"{name}: host code {peak} (end {end}), trace {ours} (end {ours_end})")
    torch.backends.cuda.enable_cudnn_sdp(True)
    assert not wrong, "\n".join(wrong)


def test_a_training_step_asks_for_the_same_in_the_same_order(
    host_code: Callable[[str], dict[str, Any]], traced: Start
) -> None:
    real: Requests = [tuple(request) for request in host_code("gpt")["gpt"]]  # type: ignore[misc]
    run = traced(world=1)
    with run.recording():
        from host_code import gpt

        gpt.train()
        torch.backends.cuda.enable_cudnn_sdp(True)
    estimate = requests_of(run.trace, run.device)
    assert peak_and_end(estimate)[0] == peak_and_end(real)[0]
    # Smaller ones are indices and CUB's bookkeeping in the gradient of the embedding, which one rule sums up.
    large = 256 * 1024

    def order(requests: Requests) -> list[int]:
        return [size for sign, size in requests if sign > 0 and size >= large]

    assert order(estimate) == order(real)
    assert len(order(real)) > 400


def test_an_fsdp2_step_asks_for_the_same_in_the_same_order(
    host_code: Callable[[str], dict[str, Any]], traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All-gathers, reduce-scatters, their streams and resized storages, and AdamW on DTensors."""
    real: Requests = [tuple(request) for request in host_code("llama")["llama"]]  # type: ignore[misc]
    run = traced(world=8)
    monkeypatch.setattr(sys, "argv", ["llama_fsdp2.py", "--steps", "2"])
    torch.backends.cuda.enable_cudnn_sdp(False)
    with run.recording():
        runpy.run_path(str(REPOSITORY / "examples" / "llama_fsdp2.py"), run_name="__main__")
    torch.backends.cuda.enable_cudnn_sdp(True)
    estimate = requests_of(run.trace, run.device)
    # Smaller ones hold the pointers and sizes that FSDP2's batched copies give their kernels: 1 to 2 KiB each.
    small = 4096

    def order(requests: Requests) -> list[int]:
        return [size for sign, size in requests if sign > 0 and size > small]

    assert order(estimate) == order(real)
    assert len(order(real)) > 800
    assert 0 <= peak_and_end(real)[0] - peak_and_end(estimate)[0] < 2 * small
