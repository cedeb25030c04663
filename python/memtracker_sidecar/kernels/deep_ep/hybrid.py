"""HybridEP's buffer (branch hybrid-ep of DeepEP): dispatch with permutation, combine with its inverse.

DeepEP 94a9f8f: deep_ep/hybrid_ep_buffer.py (the Python class), csrc/hybrid_ep/executor/executor.cu and hybrid_ep.cu (what each
call allocates), csrc/hybrid_ep/buffer/intranode.cu (buffers past the caching allocator), csrc/hybrid_ep/config.cuh (defaults).
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memtracker_sidecar.kernels.deep_ep import arrivals
from memtracker_sidecar.kernels.extension import assume, host

_numbers = itertools.count(1)
_SOURCE = "DeepEP 94a9f8f (hybrid-ep) csrc/hybrid_ep/buffer/intranode.cu"


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _setting(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


class HybridEPBuffer:
    """Stands for deep_ep.HybridEPBuffer."""

    def __init__(
        self,
        group: Any,
        hidden_dim: int,
        max_num_of_tokens_per_rank: int,
        num_local_experts: int,
        use_fp8: bool = False,
        num_sms_preprocessing_api: int | None = None,
        use_shared_buffer: bool = True,
        **_options: Any,
    ) -> None:
        self.group = group
        self.group_size = group.size()
        self.hidden = hidden_dim
        self.experts = num_local_experts
        self.token_bytes = 1 if use_fp8 else 2
        self.shared = use_shared_buffer
        self.preprocessing_blocks = num_sms_preprocessing_api or 108
        self.per_node = self._ranks_of_domain()
        self.nodes = self.group_size // self.per_node
        self.most_tokens = 0
        self._grow(max(max_num_of_tokens_per_rank, 512))

    def _ranks_of_domain(self) -> int:
        """Ranks that reach each other's memory: those of a node, unless the variable that HybridEP reads says otherwise."""
        stated = os.environ.get("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN")
        if stated is not None:
            return int(stated)
        domain = min(self.group_size, torch.cuda.device_count())
        assume(
            "hybrid_ep.detect_accessible_ranks",
            f"{domain} ranks reach each other's memory",
            0,
            "NVLink between nodes is not looked for",
        )
        return domain

    def _grow(self, tokens: int) -> None:
        """Buffers for `tokens` of each rank, in whole chunks of a combine; a larger call replaces them."""
        chunk = _setting("NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", 64)
        tokens = _up(tokens, chunk)
        if tokens <= self.most_tokens:
            return
        if self.most_tokens:
            assume("hybrid_ep.update_buffer", "buffers that were replaced are still held", -1)
        self.most_tokens = tokens
        most = tokens * self.per_node * self.nodes
        values = most * self.hidden
        probabilities = most * self.experts * self.per_node * 4
        flags = -(-tokens // chunk) * self.per_node * self.nodes * 4
        sizes = {
            "combine tokens": values * 2,
            "combine probabilities": probabilities,
            "dispatch scales": most * (self.hidden // 128) * 4,
            "flags": 2 * flags,
        }
        if not self.shared:
            sizes["dispatch tokens"] = values * self.token_bytes
            sizes["dispatch probabilities"] = probabilities
        if self.nodes > 1:
            assume(
                "hybrid_ep.internode",
                "no buffers beside those of NVLink",
                -1,
                "RDMA buffers of HybridEP over several nodes",
            )
        for part, nbytes in sizes.items():
            host().external(
                f"hybrid_ep.{next(_numbers)}.{part}",
                "deep_ep",
                nbytes,
                {"part": part, "provenance": _SOURCE},
            )

    def dispatch_with_permute(
        self,
        *,
        hidden: torch.Tensor,
        routing_map: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
        scaling_factor: torch.Tensor | None = None,
        num_of_experts_per_rank: int | None = None,
        num_permuted_tokens: Any = None,
        pad_multiple: int | None = None,
        handle: tuple[Any, ...] | None = None,
        non_blocking: bool = False,
        fuse_permute_dispatch: bool = False,
        **_options: Any,
    ) -> tuple[Any, ...]:
        """(rows in the order of experts, their probabilities, scales, rows of each expert, handle)."""
        tokens = hidden.size(0)
        with host().operator("hybrid_ep_cpp::dispatch_with_permute"):
            counts = None
            if handle is None:
                assert routing_map is not None
                self._grow(_up(tokens, 16))
                handle, counts, rows = self._preprocess(
                    routing_map, num_permuted_tokens, pad_multiple or 1, non_blocking
                )
            else:
                rows = (
                    int(num_permuted_tokens) if num_permuted_tokens is not None else handle[9].rows
                )
            received = hidden.new_empty((rows, self.hidden))
            probabilities = None
            if probs is not None:
                probabilities = torch.empty((rows,), dtype=torch.float32, device="cuda")
            scales = None
            if scaling_factor is not None:
                scales = scaling_factor.new_empty((rows, self.hidden // 128))
        return received, probabilities, scales, counts, handle

    def _preprocess(
        self, routing_map: torch.Tensor, stated: Any, pad: int, non_blocking: bool
    ) -> tuple[tuple[Any, ...], torch.Tensor, int]:
        tokens, experts = routing_map.shape
        ranks = self.group_size
        everyone = torch.empty((tokens * ranks, experts), dtype=torch.bool, device="cuda")
        dist.all_gather_into_tensor(everyone, routing_map.contiguous(), group=self.group)
        chunk = _setting("NUM_OF_TOKENS_PER_CHUNK_PREPROCESSING_API", 64)
        sparse = _ints(tokens * self.nodes, self.per_node)
        rdma = _bools(_up(tokens, 16), self.nodes)
        attention = _bools(tokens, self.nodes - 1)
        dispatched = _ints(1) if non_blocking else torch.empty(1, dtype=torch.int32, device="cpu")
        local = _bools(tokens * ranks, self.experts)
        overflow = _ints(1)
        layout = _ints(-(-tokens // chunk) * ranks)
        dense = _ints(tokens * ranks, self.experts)
        per_expert = _ints(self.experts)
        came = arrivals.of(tokens, 0, experts, ranks)
        padded = [_up(count, pad) for count in came.per_expert]
        rows = int(stated) if stated is not None else sum(padded)
        if non_blocking:
            counts = torch.empty(self.experts, dtype=torch.int64, device="cuda")
        else:
            with unset_fake_temporarily():
                counts = torch.tensor(padded, dtype=torch.int64)
        facts = _Config(rows)
        handle = (
            *(sparse, rdma, attention, dispatched, local, layout, dense, per_expert),
            *(tokens, facts, overflow),
        )
        return handle, counts, rows

    def combine_with_unpermute(
        self,
        *,
        hidden: torch.Tensor,
        probs: torch.Tensor | None = None,
        handle: tuple[Any, ...] | None = None,
        **_options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(a row a token, its probabilities for every expert)."""
        assert handle is not None
        tokens = handle[8]
        with host().operator("hybrid_ep_cpp::combine_with_unpermute"):
            combined = hidden.new_empty((tokens, self.hidden))
            probabilities = None
            if probs is not None:
                probabilities = torch.empty(
                    (tokens, self.experts * self.group_size), dtype=torch.float32, device="cuda"
                )
        return combined, probabilities


class _Config:
    """The configuration object of a handle; only the number of rows of its dispatch matters."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def _ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


def _bools(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bool, device="cuda")
