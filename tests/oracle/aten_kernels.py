"""What PyTorch's own CUDA host code allocates for an operator, allocation by allocation, without a GPU.

    python aten_kernels.py            one JSON line for each case: name, outputs, and every allocation in order
    python aten_kernels.py NAME…      only these cases

The real dispatch of the pinned PyTorch runs over the fake CUDA runtime: kernels are no-ops, sizes are what the host code asks for.
Sizes of CUB's temporary storage come from CUB itself and depend on the answers about occupancy, so they are a class of their
own for the tests (`python/tests/test_aten_rules.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fake_cuda.preload import FakeDevices, Preload, start_again

if TYPE_CHECKING:
    from torch import Tensor

CAPACITY = 81_559 << 20  # of an H100


def cases() -> dict[str, Callable[[], Callable[[], Any]]]:
    """By name: a function that makes the inputs and returns the call to be watched."""
    import torch
    from torch.nn import functional as f

    def rows(*shape: int, dtype: Any = torch.float32) -> Tensor:
        return torch.empty(shape, device="cuda", dtype=dtype)

    def ids(*shape: int) -> Tensor:
        return torch.zeros(shape, device="cuda", dtype=torch.int64)

    aten = torch.ops.aten
    bf16 = torch.bfloat16

    def embedding_backward(
        tokens: int, vocabulary: int, width: int, dtype: Any
    ) -> Callable[[], Any]:
        grad, index = rows(tokens, width, dtype=dtype), ids(tokens)
        return lambda: aten.embedding_dense_backward(grad, index, vocabulary, -1, False)

    def index_put(accumulate: bool) -> Callable[[], Any]:
        target, values = rows(4096, 512), rows(1000, 512)
        index = ids(1000)
        return lambda: target.index_put_((index,), values, accumulate)

    def fill_by_mask() -> Callable[[], Any]:
        target, mask = rows(4096), ids(4096) > 0

        def assign() -> None:
            target[mask] = 0.0

        return assign

    def pair(
        make: Callable[[], Tensor], call: Callable[[Tensor], Any]
    ) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            value = make()
            return lambda: call(value)

        return prepare

    found: dict[str, Callable[[], Callable[[], Any]]] = {
        "add": pair(lambda: rows(1000, 512), lambda x: x + x),
        "sum_rows": pair(lambda: rows(4096, 50304), lambda x: x.sum(dim=-1)),
        "sum_columns": pair(lambda: rows(4096, 512, dtype=bf16), lambda x: x.sum(dim=0)),
        "sum_all": pair(lambda: rows(1 << 24), lambda x: x.sum()),
        "sum_few_rows": pair(lambda: rows(4, 1 << 20), lambda x: x.sum(dim=-1)),
        "max_rows": pair(lambda: rows(4096, 50304), lambda x: torch.max(x, dim=-1)),
        "norm_all": pair(lambda: rows(1 << 24), lambda x: torch.norm(x)),
        "foreach_norm": pair(lambda: rows(1 << 20), lambda x: torch._foreach_norm([x, x, x])),
        "sort": pair(lambda: ids(8192), lambda x: torch.sort(x)),
        "argsort_rows": pair(lambda: rows(64, 8192), lambda x: torch.argsort(x, dim=-1)),
        "topk": pair(lambda: rows(8192, 8), lambda x: torch.topk(x, 2, dim=-1)),
        "cumsum": pair(lambda: ids(8192), lambda x: torch.cumsum(x, 0)),
        "nonzero": pair(lambda: ids(8192), lambda x: torch.nonzero(x)),
        "masked_select": pair(lambda: rows(8192), lambda x: torch.masked_select(x, x > 0)),
        "softmax": pair(lambda: rows(4096, 512, dtype=bf16), lambda x: torch.softmax(x, -1)),
        "log_softmax_nll": pair(lambda: rows(4096, 512), lambda x: f.cross_entropy(x, ids(4096))),
        "layer_norm": pair(
            lambda: rows(4096, 512, dtype=bf16),
            lambda x: aten.native_layer_norm(x, [512], None, None, 1e-5),
        ),
        "layer_norm_backward": pair(
            lambda: rows(4096, 512, dtype=bf16),
            lambda x: aten.native_layer_norm_backward(
                x,
                x,
                [512],
                rows(4096, 1),
                rows(4096, 1),
                rows(512, dtype=bf16),
                rows(512, dtype=bf16),
                [True] * 3,
            ),
        ),
        "embedding_backward_small": lambda: embedding_backward(1024, 50304, 512, bf16),
        "embedding_backward": lambda: embedding_backward(4096, 50304, 512, bf16),
        "index_put": lambda: index_put(False),
        "index_put_accumulate": lambda: index_put(True),
        "fill_by_mask": fill_by_mask,
        "gather_backward": pair(
            lambda: rows(8192, 64), lambda x: aten.gather_backward(x, x, 0, ids(8192, 64), False)
        ),
        "mm": pair(lambda: rows(1024, 1024, dtype=bf16), lambda x: x @ x),
        "dropout": pair(
            lambda: rows(4096, 512, dtype=bf16), lambda x: aten.native_dropout(x, 0.1, True)
        ),
    }
    return found


def watch(prepare: Callable[[], Callable[[], Any]]) -> dict[str, Any]:
    """The allocations of one call, and the storages that are left after it."""
    import torch

    call = prepare()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=100_000)
    result = call()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    live: dict[int, int] = {}
    order: list[list[Any]] = []
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = len(order)
            order.append([entry["size"], False])
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            order[live.pop(entry["addr"])][1] = True
    del result
    return {"allocations": [{"bytes": size, "freed": freed} for size, freed in order]}


def main() -> None:
    start_again(Preload(with_cublas=True), FakeDevices(CAPACITY).environment())
    wanted = sys.argv[1:]
    for name, prepare in cases().items():
        if wanted and name not in wanted:
            continue
        try:
            said = watch(prepare)
        except Exception as error:  # a kernel that needs values or a library that is not faked
            said = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps({"case": name, **said}), flush=True)


if __name__ == "__main__":
    main()
