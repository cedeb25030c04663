"""Sends and receives: one of a batch uses the group's communicator, one by itself a communicator of two ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from conftest import TracedRun

from memtracker_sidecar import protocol


def kinds(run: TracedRun) -> list[tuple[str, int, int]]:
    """Kind, payload and peer (global rank + 1) of every collective."""
    trace = run.trace
    return [
        (trace.strings[event[3]], event[4], event[7])
        for event in trace.of(protocol.COLLECTIVE_BEGIN)
    ]


def test_a_batch_is_told_from_single_calls(traced: Callable[..., TracedRun]) -> None:
    run = traced(rank=1)
    with run.recording():
        dist.init_process_group("nccl")
        tensor = torch.empty(1024, dtype=torch.uint8, device="cuda")
        dist.send(tensor, 2)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, tensor, 2), dist.P2POp(dist.irecv, tensor, 0)]
        ):
            work.wait()
        dist.recv(tensor, 0)
    assert kinds(run) == [
        ("send", 1024, 3),
        ("batch_send", 1024, 3),
        ("batch_recv", 1024, 1),
        ("recv", 1024, 1),
    ]
