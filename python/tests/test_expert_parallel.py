"""DeepEP and HybridEP: sizes of communication buffers, what a dispatch makes, how many rows it brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from conftest import TracedRun

from memtracker_sidecar.kernels import extension
from memtracker_sidecar.kernels.deep_ep import arrivals
from memtracker_sidecar.kernels.deep_ep.buffer import Buffer, Config
from memtracker_sidecar.kernels.deep_ep.hybrid import HybridEPBuffer
from memtracker_sidecar.kernels.extension import DetachedHost

Start = Callable[..., TracedRun]


class Group:
    """A process group of eight ranks, as far as a buffer asks."""

    def size(self) -> int:
        return 8

    def rank(self) -> int:
        return 3


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[DetachedHost]:
    found = DetachedHost()
    extension.attach(found)
    nothing = lambda *_arguments, **_options: None  # noqa: E731
    monkeypatch.setattr(torch.distributed, "all_gather_object", nothing)
    monkeypatch.setattr(torch.distributed, "all_gather_into_tensor", nothing)
    yield found
    extension.attach(DetachedHost())


@pytest.mark.parametrize(
    ("config", "ranks", "nvlink", "rdma"),
    [
        ((20, 6, 256, 6, 128), 8, 335_709_824, 0),
        ((20, 36, 288, 20, 128), 16, 377_673_984, 91_887_744),
    ],
)
def test_sizes_of_buffers_are_deepeps(
    config: tuple[int, int, int, int, int], ranks: int, nvlink: int, rdma: int
) -> None:
    # Printed by DeepEP 1.2.1's own csrc/config.hpp, compiled, for tokens of 7168 bf16 values.
    made = Config(*config)
    assert made.get_nvl_buffer_size_hint(7168 * 2, ranks) == nvlink
    assert made.get_rdma_buffer_size_hint(7168 * 2, ranks) == rdma


def test_a_token_comes_once_however_many_of_its_experts_are_here() -> None:
    # 2 of 16 experts chosen, 4 here: 1 - (12 * 11) / (16 * 15) = 0.45 of the tokens come; half an expert a token does.
    came = arrivals.balanced(tokens=1000, chosen=2, experts=16, ranks=4)
    assert came.rows == 1800
    assert sum(came.per_expert) == 2000 and len(came.per_expert) == 4
    assert arrivals.everything(1000, 2, 16, 4).rows == 4000


def test_a_dispatch_makes_rows_on_the_communication_stream(
    traced: Start, host: DetachedHost
) -> None:
    run = traced()
    with run.recording():
        buffer = Buffer(Group(), num_nvl_bytes=1 << 20)
        tokens = torch.empty(512, 1024, dtype=torch.bfloat16, device="cuda")
        chosen = torch.empty(512, 2, dtype=torch.int64, device="cuda")
        weights = torch.empty(512, 2, dtype=torch.float32, device="cuda")
        layout = buffer.get_dispatch_layout(chosen, 16)
        with arrivals.stated(lambda *_: arrivals.Arrivals(700, (400, 500))):
            received, indices, probabilities, counts, handle, _ = buffer.dispatch(
                tokens,
                num_tokens_per_rank=layout[0],
                is_token_in_rank=layout[3],
                num_tokens_per_expert=layout[2],
                topk_idx=chosen,
                topk_weights=weights,
                previous_event=Buffer.capture(),
                async_finish=True,
                allocate_on_comm_stream=True,
            )
        combined, _, _ = buffer.combine(received, handle)
    assert received.shape == (700, 1024) and indices.shape == probabilities.shape == (700, 2)
    assert counts == [400, 500]
    assert combined.shape == tokens.shape
    made = {a["bytes"]: a["stream"] for a in run.trace.allocations(run.device)}
    assert made[700 * 1024 * 2] == buffer.comm_stream.stream_id
    # 32 MiB of workspace and the buffer asked for, with pointers and signals of eight peers behind it (csrc/deep_ep.cpp).
    external = {r[1].rpartition(".")[2]: r[4] for r in host.reports if r[0] == "external"}
    assert external == {"nvlink": (1 << 20) + 8 * 20, "workspace": 32 << 20}


def test_hybridep_gives_rows_in_the_order_of_experts(traced: Start, host: DetachedHost) -> None:
    run = traced()
    with run.recording():
        buffer = HybridEPBuffer(Group(), 1024, 512, num_local_experts=2)
        tokens = torch.empty(512, 1024, dtype=torch.bfloat16, device="cuda")
        routing = torch.empty(512, 16, dtype=torch.bool, device="cuda")
        probs = torch.empty(512, 16, dtype=torch.float32, device="cuda")
        with arrivals.stated(lambda *_: arrivals.Arrivals(700, (401, 500))):
            rows, probabilities, _, counts, handle = buffer.dispatch_with_permute(
                hidden=tokens, routing_map=routing, probs=probs, pad_multiple=16
            )
        combined, _ = buffer.combine_with_unpermute(hidden=rows, handle=handle)
    assert counts.tolist() == [416, 512]
    assert rows.shape == (928, 1024) and probabilities.shape == (928,)
    assert combined.shape == tokens.shape
    external = {r[1].rpartition(".")[2]: r[4] for r in host.reports if r[0] == "external"}
    # max_num_of_tokens x hidden_dim x 2 B for the tokens of all ranks (csrc/hybrid_ep/buffer/intranode.cu).
    assert external["combine tokens"] == 512 * 8 * 1024 * 2
