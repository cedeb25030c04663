"""Where tokens go in mixture-of-experts layers: values that a real router computes and that sizes depend on.

One assumption, named in the trace: each expert of the job receives the same number of rows, times the option `routing` for the
experts of this rank (`worst`: every token of the group comes here). The dispatchers' own code runs; only the counts that it would
copy to the host are filled in. Capacity limits (`--moe-expert-capacity-factor`) apply as in Megatron.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from memtracker_sidecar.adapter_api import AdapterContext, AdapterProblem, InterfaceChanged
from memtracker_sidecar.kernels.deep_ep import arrivals

DISPATCHER = "megatron.core.transformer.moe.token_dispatcher"


def host_counts(shape: tuple[int, ...], total: int) -> torch.Tensor:
    """A real CPU tensor of equal counts that sum up to `total`; remainders go to the first entries."""
    entries = 1
    for size in shape:
        entries *= size
    with unset_fake_temporarily():
        counts = torch.full((entries,), total // entries, dtype=torch.int64)
        counts[: total % entries] += 1
        return counts.view(shape)


def _factor(option: Any) -> float:
    try:
        factor = float(option)
    except ValueError:
        factor = 0.0
    if not factor > 0:
        raise AdapterProblem(
            f"option routing is {option!r}; a factor above 0 (routing=1.25) or routing=worst is expected"
        )
    return factor


class Routing:
    """The counts of one job."""

    def __init__(self, context: AdapterContext) -> None:
        self.context = context
        option = context.spec.options.get("routing", 1.0)
        self.worst = option == "worst"
        self.factor = 1.0 if self.worst else _factor(option)
        self.selected: int | None = None

    def sent(self, tokens: int, topk: int, config: Any) -> int:
        """Rows that this rank sends: topk for each token, fewer under a capacity limit."""
        total = tokens * topk
        if config.moe_expert_capacity_factor is None:
            return total
        per_expert = total // config.num_moe_experts
        capacity = -(-int(per_expert * config.moe_expert_capacity_factor * 1_000_000) // 1_000_000)
        return min(per_expert, max(capacity, 0)) * config.num_moe_experts

    def received(self, sent: int, ranks: int) -> int:
        """Rows that come from each of `ranks` to this rank."""
        if self.worst:
            return sent
        return int(sent // ranks * self.factor)

    def report(self) -> None:
        how = (
            "every token comes to this rank"
            if self.worst
            else f"balanced routing times {self.factor:g}"
        )
        self.context.uncovered("data_dependent", "expert routing", assumption=how)


def install(context: AdapterContext) -> None:
    """Fills the counts in. Does nothing in releases without these dispatchers."""
    try:
        context.require(DISPATCHER)
    except InterfaceChanged as error:
        context.uncovered("feature", "mixture of experts", detail=str(error), assumption="")
        return
    routing = Routing(context)
    context.data_dependent.selected = lambda _tensor, _mask: routing.selected
    _all_gather(context, routing)
    _sort_chunks(context)
    try:
        context.require(DISPATCHER, "maybe_move_tensor_to_cpu")
    except (
        InterfaceChanged
    ) as error:  # before April 2025 the all-to-all dispatcher moved counts itself
        _unknown_counts(context, str(error))
        return
    _to_host(context, routing)
    _all_to_all(context, routing)
    _flex(context, routing)


def _unknown_counts(context: AdapterContext, detail: str) -> None:
    """Jobs that make an all-to-all dispatcher have counts that nothing fills in."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init(self: Any, *arguments: Any, **options: Any) -> None:
            context.uncovered("feature", "all-to-all dispatcher", detail=detail, assumption="")
            original(self, *arguments, **options)

        return init

    context.replace(DISPATCHER, "MoEAlltoAllTokenDispatcher.__init__", make, "says what is missing")


def _to_host(context: AdapterContext, routing: Routing) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
            if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
                if tensor.dim() == 0:
                    return int(routing.selected or 0)
                counts = host_counts(tuple(tensor.shape), 0)
                return counts.numpy() if as_numpy else counts
            if isinstance(tensor, torch.Tensor) and as_numpy:
                with unset_fake_temporarily():
                    return tensor.numpy()
            return tensor

        return move

    context.replace(
        DISPATCHER,
        "maybe_move_tensor_to_cpu",
        make,
        "token counts do not exist; they are filled in afterwards",
    )


def _all_to_all(context: AdapterContext, routing: Routing) -> None:
    import numpy

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def preprocess(self: Any, routing_map: Any) -> Any:
            original(self, routing_map)
            routing.report()
            if self.drop_and_pad:
                return host_counts(
                    (self.num_local_experts,),
                    self.num_local_experts * self.capacity * self.tp_size * self.ep_size,
                )
            sent = routing.sent(routing_map.size(0), self.config.moe_router_topk, self.config)
            routing.selected = sent
            if isinstance(self.num_out_tokens, torch.Tensor):
                self.num_out_tokens = sent
            here = routing.received(sent, self.ep_size)
            if self.ep_size > 1 or self.tp_size > 1:
                self.input_splits = _equal(numpy, sent, self.ep_size)
                self.output_splits = numpy.array([here] * self.ep_size)
                self.output_splits_tp = (
                    numpy.array([here * self.ep_size] * self.tp_size) if self.tp_size > 1 else None
                )
            sources = self.tp_size * self.ep_size
            if self.num_local_experts > 1:
                self.num_global_tokens_per_local_expert = _rows(
                    sources, self.num_local_experts, here
                )
            return host_counts((self.num_local_experts,), here * sources)

        return preprocess

    context.replace(
        DISPATCHER,
        "MoEAlltoAllTokenDispatcher.preprocess",
        make,
        "token counts do not exist; balanced ones stand in",
    )


def _flex(context: AdapterContext, routing: Routing) -> None:
    """The flex dispatcher asks DeepEP or HybridEP, which ask how many rows arrive."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def dispatch(self: Any, *arguments: Any, **options: Any) -> Any:
            routing.report()
            config = self.config

            def counts(tokens: int, _chosen: int, experts: int, ranks: int) -> arrivals.Arrivals:
                # Megatron repeats each expert for every rank of its tensor-parallel group; a token goes to all of them.
                chosen, repeated = config.moe_router_topk, experts // config.num_moe_experts
                if routing.worst:
                    return arrivals.everything(tokens, chosen, experts, ranks)
                came = arrivals.balanced(
                    tokens, chosen, experts // repeated, ranks // repeated, routing.factor
                )
                return arrivals.Arrivals(
                    min(came.rows * repeated, tokens * ranks),
                    tuple(count * repeated for count in came.per_expert),
                )

            with arrivals.stated(counts):
                received = original(self, *arguments, **options)
            came = counts(arguments[0].shape[0], 0, self.num_experts, self.group.size())
            routing.selected = sum(came.per_expert)
            if isinstance(self.tokens_per_expert, FakeTensor):
                with unset_fake_temporarily():
                    self.tokens_per_expert = torch.tensor(came.per_expert, dtype=torch.int64)
            return received

        return dispatch

    for manager in ("_DeepepManager", "_HybridEPManager"):
        try:
            context.replace(
                DISPATCHER,
                f"{manager}.dispatch",
                make,
                "token counts do not exist; balanced ones stand in",
            )
        except InterfaceChanged as error:
            context.log(str(error))


def _rows(rows: int, columns: int, total: int) -> torch.Tensor:
    with unset_fake_temporarily():
        return torch.stack([host_counts((columns,), total) for _ in range(rows)])


def _equal(numpy: Any, total: int, parts: int) -> Any:
    counts = numpy.full(parts, total // parts)
    counts[: total % parts] += 1
    return counts


def _all_gather(context: AdapterContext, routing: Routing) -> None:
    def make(original: Callable[..., Any], rows_of: Callable[[Any, Any], int]) -> Any:
        @functools.wraps(original)
        def permute(self: Any, hidden_states: Any, probs: Any, *rest: Any) -> Any:
            routing.report()
            share = self.num_local_experts / self.config.num_moe_experts
            rows = rows_of(self, hidden_states) * self.config.moe_router_topk
            here = rows if routing.worst else int(rows * share * routing.factor)
            outer = context.data_dependent.scalar
            routing.selected = here
            context.data_dependent.scalar = lambda _tensor: here
            try:
                tokens, _counts, *others = original(self, hidden_states, probs, *rest)
            finally:
                context.data_dependent.scalar = outer
                routing.selected = None
            return tokens, host_counts((self.num_local_experts,), here), *others

        return permute

    missing: InterfaceChanged | None = None
    for method, rows_of in _PERMUTATIONS:
        try:
            context.replace(
                DISPATCHER,
                f"MoEAllGatherTokenDispatcher.{method}",
                functools.partial(make, rows_of=rows_of),
                "token counts do not exist; balanced ones stand in",
            )
        except InterfaceChanged as error:
            missing = error
        else:
            return
    context.uncovered("feature", "all-gather dispatcher", detail=str(missing), assumption="")


_PERMUTATIONS: tuple[tuple[str, Callable[[Any, Any], int]], ...] = (
    ("dispatch_postprocess", lambda _self, gathered: int(gathered.shape[0])),
    # Before July 2025 one method gathered and permuted.
    (
        "token_permutation",
        lambda self, own: own.numel() // own.shape[-1] * self.tp_size * self.ep_size,
    ),
)
"""Methods of the all-gather dispatcher that make the rows of this rank's experts, and how many rows they choose from."""


def _sort_chunks(context: AdapterContext) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def sort_chunks(
            input: Any, split_sizes: Any, sorted_idxs: Any, probs: Any = None, fused: bool = False
        ) -> Any:
            if not fused:
                if isinstance(split_sizes, FakeTensor):
                    split_sizes = host_counts((split_sizes.numel(),), input.shape[0])
                if isinstance(sorted_idxs, FakeTensor):
                    with unset_fake_temporarily():
                        sorted_idxs = torch.arange(sorted_idxs.numel())
            return original(input, split_sizes, sorted_idxs, probs=probs, fused=fused)

        return sort_chunks

    context.replace(
        DISPATCHER, "sort_chunks_by_idxs", make, "token counts do not exist; balanced ones stand in"
    )
