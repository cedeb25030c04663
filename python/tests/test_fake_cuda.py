"""The pretended GPU: properties, streams, events, pools, graphs, generators, and the two builds of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import GPU, REPOSITORY, TracedRun, WorkerResult

from memtracker_sidecar import protocol
from memtracker_sidecar.fake_cuda import FakeCudaUnavailable, device_guard
from memtracker_sidecar.fake_cuda.device import device_properties
from memtracker_sidecar.worker_spec import GpuProperties

Start = Callable[..., TracedRun]

CPU_PYTHON = os.environ.get("MEMTRACKER_CPU_PYTHON")


def test_the_gpu_answers_as_named(traced: Start) -> None:
    traced(rank=3)
    assert torch.cuda.is_available() and torch.cuda.device_count() == 8
    assert torch.cuda.current_device() == 3
    assert torch.cuda.get_device_name() == GPU.name
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_tensors_land_on_the_ranks_device(traced: Start) -> None:
    run = traced(rank=3)
    with run.recording():
        assert torch.empty(4, device="cuda").device == torch.device("cuda", 3)
        with torch.cuda.device(1):
            assert torch.empty(4, device="cuda").device == torch.device("cuda", 1)
    assert [allocation["device"] for allocation in run.trace.allocations()] == [4, 2]


def test_streams_and_events_are_recorded(traced: Start) -> None:
    run = traced()
    with run.recording():
        side = torch.cuda.Stream()
        tensor = torch.empty(64, device="cuda")
        with torch.cuda.stream(side):
            torch.empty(64, device="cuda")
            assert torch.cuda.current_stream() == side
        event = torch.cuda.Event()
        event.wait()  # never recorded: cudaStreamWaitEvent does nothing
        event.record(side)
        torch.cuda.current_stream().wait_event(event)
        side.wait_stream(torch.cuda.current_stream())
        tensor.record_stream(side)
        event.synchronize()
        torch.cuda.synchronize()
    assert [a["stream"] for a in run.trace.allocations(run.device)] == [0, side.stream_id]
    records = run.trace.of(protocol.EVENT_RECORD)
    waits = run.trace.of(protocol.EVENT_WAIT)
    assert [record[2] for record in records] == [side.stream_id, 0]
    assert [wait[2] for wait in waits] == [0, side.stream_id]
    assert [record[1] for record in records] == [wait[1] for wait in waits]
    assert [event[2] for event in run.trace.of(protocol.RECORD_STREAM)] == [side.stream_id]
    assert (
        len(run.trace.of(protocol.EVENT_SYNCHRONIZE))
        == len(run.trace.of(protocol.DEVICE_SYNCHRONIZE))
        == 1
    )


def test_backward_runs_on_the_stream_of_its_forward(traced: Start) -> None:
    run = traced()
    with run.recording():
        weight = torch.empty(64, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            result = weight.sin()
        result.sum().backward()
    streams = {
        a["op"]: a["stream"]
        for a in run.trace.allocations(run.device)
        if a["step"] == protocol.PASS_BACKWARD
    }
    assert streams["aten::cos"] == side.stream_id


def test_pools_and_graphs_route_allocations(traced: Start) -> None:
    run = traced()
    with run.recording():
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            torch.empty(64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            kept = torch.empty(64, device="cuda")
        graph.replay()
        torch.empty(64, device="cuda")
    first, second = (event[1] for event in run.trace.of(protocol.POOL_CREATE))
    assert [a["pool"] for a in run.trace.allocations(run.device)] == [first, second, 0]
    assert len(run.trace.of(protocol.POOL_BEGIN)) == len(run.trace.of(protocol.POOL_END)) == 2
    assert kept.shape == (64,)


def test_libraries_route_allocations_to_a_pool_below_torch_cuda(traced: Start) -> None:
    run = traced()
    with run.recording():
        handle = torch._C._graph_pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, handle)
        torch.empty(64, device="cuda")
        torch._C._cuda_endAllocateToPool(0, handle)
        torch.empty(64, device="cuda")
    (pool,) = (event[1] for event in run.trace.of(protocol.POOL_CREATE))
    assert [a["pool"] for a in run.trace.allocations(run.device)] == [pool, 0]


def test_generator_states_are_kept(traced: Start) -> None:
    run = traced()
    with run.recording():
        torch.cuda.manual_seed(7)
        state = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(state)
        assert state.numel() == 16 and torch.cuda.initial_seed() == 7


def test_attention_takes_the_kernel_of_the_gpu(traced: Start) -> None:
    run = traced()
    attend = torch.nn.functional.scaled_dot_product_attention
    with run.recording():
        half = torch.empty(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
        attend(half, half, half, is_causal=True)
        attend(half.float(), half.float(), half.float())
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.FLASH_ATTENTION]):
            attend(half, half, half)
            with pytest.raises(RuntimeError, match="No available kernel"):
                attend(half.float(), half.float(), half.float())
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
            attend(half, half, half)
    assert run.run.attention.chosen == {
        "cudnn_attention": 1,
        "efficient_attention": 1,
        "flash_attention": 1,
        "math": 1,
    }
    largest = max(
        a["bytes"] for a in run.trace.allocations(run.device) if a["op"] != "cublas workspace"
    )
    assert largest == 2 * 8 * 128 * 128 * 4, "only the math path materialises scores"


def test_the_slots_of_the_hooks_are_read_from_the_headers(tmp_path: Path) -> None:
    slots = device_guard.hook_slots()
    assert slots["isBuilt"] == 2, "after the two entries of the virtual destructor"
    assert len(set(slots.values())) == len(slots)
    with pytest.raises(FakeCudaUnavailable, match="does not ship"):
        device_guard.hook_slots(tmp_path)
    folder = tmp_path / "ATen" / "detail"
    folder.mkdir(parents=True)
    for name in ("AcceleratorHooksInterface", "CUDAHooksInterface"):
        (folder / f"{name}.h").write_text(f"struct {name} {{ virtual bool other() const; }};")
    with pytest.raises(FakeCudaUnavailable, match="has no hasPrimaryContext"):
        device_guard.hook_slots(tmp_path)


def test_a_triton_launch_does_nothing(traced: Start) -> None:
    triton = pytest.importorskip("triton", reason="this build of PyTorch comes without Triton")
    run = traced()

    @triton.autotune(
        configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["count"]
    )
    @triton.jit
    def double(source, target, count, BLOCK: triton.language.constexpr):  # type: ignore[no-untyped-def]
        pass

    with run.recording():
        source = torch.empty(256, device="cuda")
        target = torch.empty_like(source)
        double[(4,)](source, target, 256)
    assert len(run.trace.allocations(run.device)) == 2
    assert [event[2] for event in run.trace.of(protocol.UNCOVERED)] == [
        "triton autotuning",
        "triton double",
    ]
    assert double.best_config.kwargs == {"BLOCK": 64}


@pytest.mark.skipif(
    CPU_PYTHON is None,
    reason="MEMTRACKER_CPU_PYTHON (a Python with a CPU build of torch) is not set",
)
def test_both_builds_of_pytorch_give_the_same_ledger(worker: Callable[..., WorkerResult]) -> None:
    assert CPU_PYTHON is not None
    import subprocess

    version = subprocess.run(
        [CPU_PYTHON, "-c", "import torch; print(torch.__version__.split('+')[0])"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    script = str(REPOSITORY / "examples" / "llama_fsdp2.py")
    here = worker(argv=[script], world=8)
    there = worker(
        argv=[script], world=8, python=CPU_PYTHON, environment={"MEMTRACKER_ALLOW_TORCH": version}
    )
    assert (here.status, there.status) == (0, 0)

    def ledger(result: WorkerResult) -> list[tuple[int, str]]:
        return [(a["bytes"], a["op"]) for a in result.trace.allocations(1)]

    assert here.trace.peak(1) == there.trace.peak(1) > 2**20
    assert ledger(here) == ledger(there)


@pytest.mark.parametrize(
    ("name", "multiprocessors", "cache"),
    # MrHuff/fp4-fa4 (edde9bc), test_cuda_hardware_identity_records_the_physical_training_device; pytorch/ao#4002: 126.50 MB.
    [("NVIDIA GB200", 152, 135_266_304), ("NVIDIA B200", 148, 132_644_864)],
)
def test_the_cache_is_that_of_the_gpu(name: str, multiprocessors: int, cache: int) -> None:
    gpu = GpuProperties(name, (10, 0), 197_940_150_272, multiprocessors)
    assert device_properties(gpu).L2_cache_size == cache
