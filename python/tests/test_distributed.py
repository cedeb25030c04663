"""A world of any size without the other ranks: communicators, collectives, object collectives, meshes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Trace, TracedRun

from memtracker_sidecar import protocol

Start = Callable[..., TracedRun]


def collectives(trace: Trace) -> list[tuple[str, int, int, bool, int]]:
    """(kind, communicator, bytes, async, peer) of each."""
    return [
        (trace.strings[e[3]], e[2], e[4], e[6], e[7]) for e in trace.of(protocol.COLLECTIVE_BEGIN)
    ]


def test_groups_of_this_rank_are_communicators(traced: Start) -> None:
    run = traced(world=16, rank=5)
    with run.recording():
        dist.init_process_group("nccl")
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (5, 16, "nccl")
        dist.new_group([4, 5, 6, 7])
        dist.new_group([0, 1])  # not ours
        dist.destroy_process_group()
    groups = run.trace.of(protocol.COMMUNICATOR)
    assert [(group[1], group[3], group[4], group[5]) for group in groups] == [
        (1, "nccl", list(range(16)), 0),
        (2, "nccl", [4, 5, 6, 7], 0),
    ]
    assert [event[1] for event in run.trace.of(protocol.COMMUNICATOR_DESTROY)] == [1, 2]


def test_groups_are_split_from_an_eager_default(traced: Start) -> None:
    run = traced()
    with run.recording():
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
        dist.new_group([0, 1])
    assert [(group[5], group[6]["eager"]) for group in run.trace.of(protocol.COMMUNICATOR)] == [
        (0, True),
        (1, True),
    ]


def test_payloads_are_what_nccl_counts(traced: Start) -> None:
    run = traced()
    with run.recording():
        dist.init_process_group("nccl")
        small = torch.empty(256, device="cuda")
        large = torch.empty(2048, device="cuda")
        dist.all_reduce(small)
        dist.broadcast(small, 3)
        dist.all_gather_into_tensor(large, small)
        dist.reduce_scatter_tensor(small, large)
        dist.all_gather([torch.empty_like(small) for _ in range(8)], small)
        dist.all_to_all_single(torch.empty_like(large), large)
        dist.send(small, 3)
        dist.recv(small, 7)
        dist.barrier()
        dist.all_reduce(torch.empty(4))  # a host tensor: not NCCL's
    assert collectives(run.trace) == [
        ("all_reduce", 1, 1024, False, 0),
        ("broadcast", 1, 1024, False, 0),
        ("all_gather", 1, 8192, False, 0),
        ("reduce_scatter", 1, 8192, False, 0),
        ("all_gather", 1, 8192, False, 0),
        ("all_to_all", 1, 8192, False, 0),
        ("send", 1, 1024, True, 4),
        ("recv", 1, 1024, True, 8),
        ("barrier", 1, 4, False, 0),
    ]
    assert len(run.trace.of(protocol.COLLECTIVE_END)) == 9


def test_an_asynchronous_collective_holds_its_tensors_until_the_wait(traced: Start) -> None:
    run = traced()
    with run.recording():
        dist.init_process_group("nccl")
        work: Any = dist.all_reduce(torch.empty(256, device="cuda"), async_op=True)
        assert run.trace.of(protocol.FREE) == [] and run.trace.of(protocol.COLLECTIVE_END) == []
        work.wait()
        assert len(run.trace.of(protocol.FREE)) == len(run.trace.of(protocol.COLLECTIVE_END)) == 1
        dist.all_reduce(torch.empty(256, device="cuda"))  # a synchronous one holds nothing
        assert len(run.trace.of(protocol.FREE)) == len(run.trace.of(protocol.COLLECTIVE_END)) == 2


def test_functional_collectives_end_where_their_result_is_used(traced: Start) -> None:
    run = traced()
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce

    with run.recording():
        dist.init_process_group("nccl")
        part = torch.empty(64, device="cuda")
        whole = all_gather_tensor(part, 0, dist.group.WORLD)
        del part
        assert run.trace.of(protocol.COLLECTIVE_END) == [] and run.trace.of(protocol.FREE) == []
        whole.sum()
        assert len(run.trace.of(protocol.COLLECTIVE_END)) == 1
        assert [event[1] for event in run.trace.of(protocol.FREE)][:1] == [1], (
            "the input is let go by the wait"
        )
        dropped = all_reduce(torch.empty(64, device="cuda"), "sum", dist.group.WORLD)
        del dropped
        assert len(run.trace.of(protocol.COLLECTIVE_END)) == 2
    assert collectives(run.trace) == [
        ("all_gather", 1, 2048, True, 0),
        ("all_reduce", 1, 256, True, 0),
    ]


def test_batched_and_coalesced_calls(traced: Start) -> None:
    run = traced(rank=1)
    with run.recording():
        dist.init_process_group("nccl")
        tensor = torch.empty(64, device="cuda")
        calls = [
            dist.P2POp(dist.isend, tensor, 2),
            dist.P2POp(dist.irecv, torch.empty_like(tensor), 0),
        ]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        with dist._coalescing_manager(async_ops=True) as coalesced:
            dist.all_gather_into_tensor(torch.empty(512, device="cuda"), tensor)
            dist.all_gather_into_tensor(torch.empty(512, device="cuda"), tensor)
        coalesced.wait()
    kinds = collectives(run.trace)
    assert kinds[:2] == [("batch_send", 1, 256, True, 3), ("batch_recv", 1, 256, True, 1)]
    assert sum(size for kind, _, size, _, _ in kinds if kind == "all_gather") == 2 * 2048
    del coalesced
    assert len(run.trace.of(protocol.COLLECTIVE_END)) == len(kinds)


def test_every_rank_sends_what_this_one_sends(traced: Start) -> None:
    run = traced(world=4, rank=2)
    with run.recording():
        dist.init_process_group("nccl")
        objects: list[Any] = [None] * 4
        dist.all_gather_object(objects, {"rank": dist.get_rank()})
        assert objects == [{"rank": 2}] * 4
        out: list[Any] = [None]
        dist.scatter_object_list(out, ["a", "b", "c", "d"])
        assert out == ["c"]
        kept = ["value"]
        dist.broadcast_object_list(kept, 0)
        assert kept == ["value"]


def test_meshes_of_any_shape(traced: Start) -> None:
    run = traced(world=4096, rank=1234)
    from torch.distributed.device_mesh import init_device_mesh

    with run.recording():
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (8, 64, 8), mesh_dim_names=("pp", "dp", "tp"))
        assert list(mesh.get_coordinate() or []) == [2, 26, 2]
        assert mesh["tp"].size() == 8
        assert dist.get_process_group_ranks(mesh["dp"].get_group()) == list(
            range(1026, 1026 + 512, 8)
        )
    assert {len(group[4]) for group in run.trace.of(protocol.COMMUNICATOR)} == {4096, 8, 64}


def test_a_compiled_function_waits_for_its_inputs_from_the_first_call_on(traced: Start) -> None:
    # torch 2.14.1, torch/_functorch/_aot_autograd: process_inputs() waits while it compiles, the runtime wrapper in later calls.
    run = traced()
    from torch.distributed import _functional_collectives as functional

    with run.recording(), torch.no_grad():
        dist.init_process_group("nccl")
        compiled = torch.compile(lambda x: x * 2, backend="aot_eager")
        for _ in range(3):
            result = functional.reduce_scatter_tensor(
                torch.empty(64, 64, device="cuda"), "sum", 0, dist.group.WORLD
            )
            held = torch.cuda.memory_allocated()
            product = compiled(result)
            # The input of the collective is let go, the product is new and of the result's size.
            assert torch.cuda.memory_allocated() == held - 64 * 64 * 4 + 8 * 64 * 4
            del product


def test_context_parallel_ranks_are_told_apart(traced: Start) -> None:
    # Ring attention with a causal mask: torch 2.14.1, _templated_ring_attention, `i <= rank` decides what a step computes.
    run = traced(world=16, rank=0)
    from torch.distributed.device_mesh import init_device_mesh

    with run.recording():
        dist.init_process_group("nccl")
        init_device_mesh("cuda", (2, 2, 4), mesh_dim_names=("pp", "dp", "cp"))
    stated = [event[2] for event in run.trace.of(protocol.RUN) if event[1] == "layout"]
    assert stated[-1]["differing"] == ["pp"] and stated[-1]["uneven"] == ["cp"]


def test_fsdp2_buffers_and_gradients_have_owners(traced: Start) -> None:
    run = traced()
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    with run.recording():
        dist.init_process_group("nccl")
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to("cuda")
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        run.context.register_model(model)
        model(torch.empty(4, 64, device="cuda")).sum().backward()
    owners = list(run.trace.owners().values())
    names = {name for kind, name in owners if kind == protocol.OWNER_UNSHARDED_PARAMETER}
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {name for kind, name in owners if kind == protocol.OWNER_COMMUNICATION} == {
        "FSDP2 all-gather output",
        "FSDP2 reduce-scatter input",
    }
    assert {name for kind, name in owners if kind == protocol.OWNER_GRADIENT} >= {
        "0.weight",
        "1.weight",
    }
    kinds = [kind for kind, *_ in collectives(run.trace)]
    assert kinds.count("all_gather") == 4 and kinds.count("reduce_scatter") == 2


def test_chunks_of_a_parameter_are_those_of_fsdp2(traced: Start) -> None:
    """Expected: torch/distributed/fsdp/_fully_shard/_fsdp_common.py, _chunk_with_empty, called itself."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common

    from memtracker_sidecar.fsdp2_chunks import Chunks

    for shape, dim in (((7, 3), 0), ((8, 4), 1), ((2,), 0), ((0, 3), 0)):
        for ranks in (1, 2, 4, 5):
            tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
            expected = _fsdp_common._chunk_with_empty(tensor, ranks, dim)
            found = Chunks(tensor, ranks, dim)
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert one.flatten().tolist() == other.flatten().tolist()
                assert one.numel() == 0 or one.shape == other.shape


def test_events_are_the_same_with_all_chunks_of_fsdp2(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expected: the events of the same program with PyTorch's own chunks."""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    from memtracker_sidecar import fsdp2_chunks

    def events() -> list[tuple[str, int, int]]:
        run = traced(world=64, rank=5)
        with run.recording():
            dist.init_process_group("nccl")
            with torch.device("meta"):
                model = nn.Sequential(nn.Linear(48, 100), nn.Linear(100, 7))
            for layer in model:
                fully_shard(layer)
            fully_shard(model)
            model.to_empty(device="cuda")
            model(torch.empty(4, 48, device="cuda")).sum().backward()
            dist.destroy_process_group()
        return [
            (event["op"], event["storage"], event["bytes"]) for event in run.trace.allocations()
        ] + [("free", event[1], 0) for event in run.trace.of(protocol.FREE)]

    found = events()
    monkeypatch.setattr(fsdp2_chunks, "install", lambda _replacements: None)
    assert found == events() and len(found) > 20


@pytest.mark.parametrize("as_view", [False, True], ids=["beside", "view"])
def test_ddp_buckets_as_the_cpp_reducer_makes_them(traced: Start, as_view: bool) -> None:
    """Expected: torch.cuda.memory_allocated() of PyTorch 2.14.1's C++ reducer in the same program, over a CUDA runtime without a GPU."""
    run = traced()
    from torch import nn

    with run.recording():
        dist.init_process_group("nccl")
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)]).cuda()
        assert torch.cuda.memory_allocated() == 201_424_896
        wrapped = nn.parallel.DistributedDataParallel(
            model, device_ids=[0], gradient_as_bucket_view=as_view
        )
        assert torch.cuda.memory_allocated() == 402_849_792
        torch.cuda.reset_peak_memory_stats()
        wrapped(torch.empty(256, 2048, device="cuda")).sum().backward()
        after = 469_958_656 if as_view else 671_383_552
        peak = 516_097_024 if as_view else 675_578_880
        assert torch.cuda.memory_allocated() == after
        assert torch.cuda.max_memory_allocated() == peak
        model.zero_grad()
        wrapped(torch.empty(256, 2048, device="cuda")).sum().backward()
    kinds = [kind for kind, *_ in collectives(run.trace)]
    assert kinds.count("all_reduce") > 4
    names = {
        name for kind, name in run.trace.owners().values() if kind == protocol.OWNER_GRADIENT_BUCKET
    }
    assert "DDP bucket 0" in names


def test_a_larger_symmetric_workspace_stands_beside_the_smaller_one(traced: Start) -> None:
    # torch/distributed/_symmetric_memory/__init__.py of 2.14.1, get_symm_mem_workspace: the new tensor is made before the old is let go.
    run = traced(world=2)
    with run.recording():
        dist.init_process_group("nccl")
        import torch.distributed._symmetric_memory as symmetric

        group = dist.distributed_c10d._get_default_group().group_name
        for size in (2 << 20, 1 << 20, 4 << 20):
            symmetric.get_symm_mem_workspace(group, size)
    external = (protocol.EXTERNAL_ALLOC, protocol.EXTERNAL_FREE)
    assert [event[0] for event in run.trace.events if event[0] in external] == [
        protocol.EXTERNAL_ALLOC,
        protocol.EXTERNAL_ALLOC,
        protocol.EXTERNAL_FREE,
    ]
