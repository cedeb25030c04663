"""Births, resizes, deaths, aliases, subclasses and attribution on fake CUDA tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from conftest import TracedRun
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from memtracker_sidecar import protocol
from memtracker_sidecar.devices import CPU_DEVICE
from memtracker_sidecar.fake_cuda import addresses

Start = Callable[..., TracedRun]


def test_views_and_aliases_count_once(traced: Start) -> None:
    run = traced()
    with run.recording():
        base = torch.empty(1024, device="cuda")
        alias = base.view(32, 32).t()[3:].detach()
        base.add_(1)
        torch.add(base, 1, out=base)
        assert len(run.trace.allocations(run.device)) == 1
        del base
        assert run.trace.of(protocol.FREE) == []
        del alias
    assert len(run.trace.of(protocol.FREE)) == 1


def test_a_storage_resize_is_an_event_of_the_same_storage(traced: Start) -> None:
    run = traced()
    with run.recording():
        tensor = torch.empty(1024, device="cuda")
        tensor.untyped_storage().resize_(0)
        assert run.run.live_bytes.requested[run.device] == 0
        tensor.untyped_storage().resize_(4096)
        tensor.resize_(2048)  # an operator this time
        assert run.run.live_bytes.requested[run.device] == 8192
    (storage,) = (allocation["storage"] for allocation in run.trace.allocations(run.device))
    assert [event[1:3] for event in run.trace.of(protocol.RESIZE)] == [
        (storage, 0),
        (storage, 4096),
        (storage, 8192),
    ]


def test_memory_queries_answer_from_the_ledger(traced: Start) -> None:
    run = traced()
    with run.recording():
        tensor = torch.empty(1000, device="cuda", dtype=torch.uint8)
        assert (
            torch.cuda.memory_allocated() == 1024
        )  # whole blocks of 512, as the caching allocator counts
        del tensor
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.max_memory_allocated() == 1024
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.mem_get_info() == (85_028_765_696, 85_028_765_696)
        torch.cuda.empty_cache()
    assert len(run.trace.of(protocol.RESET_PEAK)) == len(run.trace.of(protocol.EMPTY_CACHE)) == 1


def test_host_and_device_are_counted_apart(traced: Start) -> None:
    run = traced()
    with run.recording():
        host = torch.empty(256)
        device = host.to("cuda")
    assert [allocation["device"] for allocation in run.trace.allocations()] == [
        CPU_DEVICE,
        run.device,
    ]
    assert run.run.live_bytes.requested == {CPU_DEVICE: 1024, run.device: 1024}
    assert device.shape == host.shape


def test_a_storage_made_outside_of_the_dispatcher_is_found(traced: Start) -> None:
    run = traced()
    with run.run.fake_mode:
        existing = torch.empty(64, device="cuda")
    with run.recording():
        existing.view(8, 8)
        assert len(run.trace.allocations(run.device)) == 1
    del existing
    assert len(run.trace.of(protocol.FREE)) == 1


class Pair(torch.Tensor):
    """A wrapper subclass that holds two tensors, as quantised tensors do."""

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Pair:
        return torch.Tensor._make_wrapper_subclass(
            cls, first.shape, dtype=first.dtype, device=first.device
        )  # type: ignore[attr-defined]

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.first = first
        self.second = second

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        def inner(name):  # type: ignore[no-untyped-def]
            return [getattr(value, name) if isinstance(value, Pair) else value for value in args]

        return cls(
            func(*inner("first"), **(kwargs or {})), func(*inner("second"), **(kwargs or {}))
        )


def test_a_wrapper_subclass_is_its_inner_tensors(traced: Start) -> None:
    run = traced()
    with run.recording():
        pair = Pair(torch.empty(256, device="cuda"), torch.empty(256, device="cuda"))
        doubled = pair * 2
        assert [allocation["bytes"] for allocation in run.trace.allocations(run.device)] == [
            1024
        ] * 4
        run.context.owners.claim(doubled, protocol.OWNER_OTHER, "pair")
    assert [owner for owner in run.trace.owners().values()] == [(protocol.OWNER_OTHER, "pair")] * 2


def test_a_dtensor_is_its_local_shard_and_propagation_is_not_memory(traced: Start) -> None:
    run = traced(world=4)
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    with run.recording():
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (4,))
        sharded = distribute_tensor(torch.empty(4096, 64, device="cuda"), mesh, [Shard(0)])
        before = run.run.live_bytes.requested[run.device]
        result = sharded * 2
        assert run.run.live_bytes.requested[run.device] - before == 1024 * 64 * 4
    assert result.shape == (4096, 64)
    assert run.trace.peak(run.device) < 2 * 4096 * 64 * 4 + 2**16


class Net(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.second = nn.Linear(64, 64)
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=False) if self.recompute else self.first(x)
        return self.second(x.sin())


def trained(run: TracedRun, recompute: bool = False) -> Net:
    model = Net(recompute).to("cuda")
    run.context.register_model(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64).to("cuda")).sum().backward()
    optimizer.step()
    return model


def test_modules_are_named_in_forward_and_in_backward(traced: Start) -> None:
    run = traced()
    with run.recording():
        trained(run)
    made = {(a["module"], a["step"], a["op"]) for a in run.trace.allocations(run.device)}
    assert ("first.0", protocol.PASS_FORWARD, "aten::addmm") in made
    assert ("second", protocol.PASS_FORWARD, "aten::addmm") in made
    assert ("Net", protocol.PASS_FORWARD, "aten::sin") in made
    assert ("second", protocol.PASS_BACKWARD, "aten::mm") in made
    assert ("first.0", protocol.PASS_BACKWARD, "aten::mm") in made
    assert ("first.1", protocol.PASS_BACKWARD, "aten::threshold_backward") in made
    assert any(step == protocol.PASS_OPTIMIZER for _, step, _ in made)


def test_recomputation_is_told_apart(traced: Start) -> None:
    run = traced()
    with run.recording():
        trained(run, recompute=True)
    steps = {
        a["step"]
        for a in run.trace.allocations(run.device)
        if a["module"] == "first.0" and a["op"] == "aten::addmm"
    }
    assert steps == {protocol.PASS_FORWARD, protocol.PASS_RECOMPUTE}


def test_owners_of_a_training_step(traced: Start) -> None:
    run = traced()
    with run.recording():
        model = trained(run)
    owners = run.trace.owners().values()
    for category in (protocol.OWNER_PARAMETER, protocol.OWNER_GRADIENT):
        assert {name for kind, name in owners if kind == category} == {
            name for name, _ in model.named_parameters()
        }
    states = {name for kind, name in owners if kind == protocol.OWNER_OPTIMIZER_STATE}
    assert "first.0.weight.exp_avg" in states and "second.bias.exp_avg_sq" in states
    assert sum(kind == protocol.OWNER_INPUT for kind, _ in owners) == 1
    assert sum(kind == protocol.OWNER_ACTIVATION for kind, _ in owners) >= 2


def test_stacks_share_their_prefix_and_end_at_the_users_line(traced: Start) -> None:
    run = traced()
    with run.recording():
        kept = [torch.empty(8, device="cuda") for _ in range(3)]
    stacks = {event[1]: event for event in run.trace.of(protocol.STACK)}
    ends = {allocation["stack"] for allocation in run.trace.allocations(run.device)}
    assert len(ends) == 1 and len(kept) == 3
    leaf = stacks[ends.pop()]
    assert run.trace.strings[leaf[3]].endswith("test_storages.py")
    assert leaf[2] in stacks, "the caller of the line is a node of its own"


def test_a_cycle_is_freed_by_the_collector_and_reported(traced: Start) -> None:
    run = traced()
    with run.recording():
        holder: list[object] = [torch.empty(64, device="cuda")]
        holder.append(holder)
        del holder
        assert run.trace.of(protocol.FREE) == []
        gc.collect()
        assert len(run.trace.of(protocol.FREE)) == 1
    assert run.trace.of(protocol.GARBAGE_COLLECTION)


def test_cublas_workspaces_follow_handle_and_stream(
    traced: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    run = traced()
    with run.recording():
        weight = torch.empty(64, 64, device="cuda", requires_grad=True)
        product = weight @ weight
        product = product @ weight
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.empty(64, 64, device="cuda") @ torch.empty(64, 64, device="cuda")
        product.sum().backward()  # the engine's thread has a handle of its own
    workspaces = [a for a in run.trace.allocations(run.device) if a["op"] == "cublas workspace"]
    # 32 MiB on Hopper: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize.
    assert [w["bytes"] for w in workspaces] == [32 * 2**20] * 3
    assert [w["stream"] == 0 for w in workspaces] == [True, False, True]


def test_no_mode_of_ours_is_left_behind(traced: Start) -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return func(*args, **(kwargs or {}))

    run = traced()
    with pytest.raises(RuntimeError, match="reduction dim"), run.recording():
        torch.empty(3, 4, device="cuda") @ torch.empty(3, 4, device="cuda")
    with Seen():
        assert torch.ones(2).sum().item() == 2.0


def test_storages_have_addresses_of_their_own(traced: Start) -> None:
    run = traced()
    with run.recording():
        first, second = torch.empty(1000, device="cuda"), torch.empty(1000, device="cuda")
        starts = [tensor.untyped_storage().data_ptr() for tensor in (first, second)]
        assert len({*starts, 0}) == 3
        # A tensor's address is that of its storage and what it skips of it (torch.Tensor.data_ptr).
        assert first[10:].data_ptr() == starts[0] + 40
        assert first.view(10, 100).untyped_storage().data_ptr() == starts[0]
        first.untyped_storage().resize_(0)
        assert first.untyped_storage().data_ptr() == 0


def test_shared_memory_lives_until_both_storages_have_died(traced: Start) -> None:
    run = traced()
    with run.recording():
        discarded, computed_again = (
            torch.empty(1024, device="cuda"),
            torch.empty(1024, device="cuda"),
        )
        view = discarded.view(32, 32)
        discarded.untyped_storage().resize_(0)
        addresses.share(discarded, computed_again)
        assert view.data_ptr() == computed_again.data_ptr()
        del discarded, computed_again
        assert run.run.live_bytes.requested[run.device] == 4096
        del view
        assert run.run.live_bytes.requested[run.device] == 0


def test_an_operator_does_not_keep_a_storage_that_it_was_called_with(traced: Start) -> None:
    run = traced()
    with run.recording():
        tensor = torch.empty(1024, device="cuda")
        flat = torch.empty(0, device="cuda").set_(tensor.untyped_storage())
        del tensor, flat
        assert run.run.live_bytes.requested[run.device] == 0
