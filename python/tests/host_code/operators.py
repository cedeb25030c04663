"""Single operators and their backwards. `CASES[name]()` makes the inputs and returns the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Case = Callable[[], Callable[[], Any]]

CASES: dict[str, Case] = {}
FLOAT, HALF = torch.float32, torch.bfloat16


def made(*shape: int, dtype: torch.dtype = FLOAT, grad: bool = False) -> torch.Tensor:
    return torch.empty(*shape, device="cuda", dtype=dtype, requires_grad=grad)


def indices(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, device="cuda", dtype=torch.int64)


def backward(function: Callable[..., Any], *inputs: Any) -> Callable[[], Any]:
    result = function(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    gradient = torch.empty_like(result)
    return lambda: torch.autograd.backward(result, gradient)


def case(name: str) -> Callable[[Case], Case]:
    def register(function: Case) -> Case:
        CASES[name] = function
        return function

    return register


def simple(name: str, function: Callable[..., Any], *inputs: Callable[[], Any]) -> None:
    def make() -> Callable[[], Any]:
        values = [make_input() for make_input in inputs]
        return lambda: function(*values)

    CASES[name] = make


def with_backward(name: str, function: Callable[..., Any], *inputs: Callable[[], Any]) -> None:
    CASES[f"{name}, backward"] = lambda: backward(
        function, *(make_input() for make_input in inputs)
    )


# -- reductions

for dtype in (FLOAT, HALF):
    for shape in ((8192, 1024), (8192, 4096), (65536, 512), (100, 70), (4096, 32064), (3, 5, 7000)):
        for dim in (0, -1, None):
            simple(
                f"sum {dtype} {shape} over {dim}",
                lambda x, dim=dim: x.sum() if dim is None else x.sum(dim),
                lambda dtype=dtype, shape=shape: made(*shape, dtype=dtype),
            )
matrix = lambda: made(8192, 4096)  # noqa: E731
simple("mean", torch.mean, matrix)
simple("max of all", torch.max, matrix)
simple("max of rows", lambda x: x.max(0), matrix)
simple("argmax", lambda x: x.argmax(-1), matrix)
simple("any", torch.any, lambda: made(8192, 4096, dtype=torch.bool))
simple("norm", torch.linalg.vector_norm, matrix)
simple("variance", lambda x: x.var(0), lambda: made(8192, 64))
simple("deviation", torch.std, lambda: made(8192, 64))
simple("product", torch.prod, lambda: made(8192, 64))
simple("sum of a transpose", lambda x: x.t().sum(0), matrix)
simple("logsumexp", lambda x: torch.logsumexp(x, -1), matrix)
simple("softmax", lambda x: torch.softmax(x, -1), matrix)

# -- lists of tensors

simple(
    "norms of a list",
    torch._foreach_norm,
    lambda: [made(8192, 4096) for _ in range(20)] + [made(300)],
)


@case("clip_grad_norm_")
def _clip() -> Callable[[], Any]:
    parameters = [made(1024, 1024, grad=True), made(300, grad=True)]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    return lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0)


for kind in ({"foreach": True}, {"fused": True}, {"foreach": False}):

    @case(f"AdamW {kind}")
    def _adam(kind: dict[str, bool] = kind) -> Callable[[], Any]:
        parameters = [torch.nn.Parameter(made(1024, 1024)), torch.nn.Parameter(made(777))]
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, **kind)
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        return optimizer.step


# -- attention

for batch, length, heads, key_heads, head in (
    (2, 1024, 16, 16, 64),
    (1, 8192, 32, 8, 128),
    (1, 4096, 16, 8, 256),
    (2, 1000, 16, 4, 96),
    (2, 512, 8, 8, 64),
    (1, 128, 4, 4, 64),
):

    def _attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        )

    def _query(b: int = batch, h: int = heads, s: int = length, d: int = head) -> torch.Tensor:
        return made(b, h, s, d, dtype=HALF, grad=True)

    def _key(b: int = batch, h: int = key_heads, s: int = length, d: int = head) -> torch.Tensor:
        return made(b, h, s, d, dtype=HALF, grad=True)

    name = f"attention {batch} x {length} x {heads}/{key_heads} x {head}"
    simple(name, _attention, _query, _key, _key)
    with_backward(name, _attention, _query, _key, _key)

# -- look-ups

for count, vocabulary, width in (
    (8192, 128256, 4096),
    (8192, 50257, 1024),
    (2000, 1000, 64),
    (4000, 512, 768),
):
    for dtype in (FLOAT, HALF):
        with_backward(
            f"embedding {count} of {vocabulary} x {width} {dtype}",
            F.embedding,
            lambda count=count: indices(count),
            lambda v=vocabulary, w=width, dtype=dtype: made(v, w, dtype=dtype, grad=True),
        )
table = lambda: made(8192, 1024, grad=True)  # noqa: E731
rows = lambda: made(8192, 64, grad=True)  # noqa: E731
simple("index", lambda x, i: x[i], table, lambda: indices(16384))
with_backward("index", lambda x, i: x[i], table, lambda: indices(16384))
with_backward("index by two", lambda x, i: x[i, i], table, lambda: indices(16384))
with_backward("gather", lambda x, i: x.gather(1, i), rows, lambda: indices(8192, 8))
with_backward("index_select", lambda x, i: x.index_select(0, i), rows, lambda: indices(8192))
with_backward("topk", lambda x: x.topk(8, -1)[0], rows)
with_backward("max", lambda x: x.max(-1)[0], rows)
with_backward("sort", lambda x: x.sort(-1)[0], rows)
plain = lambda: made(8192, 64)  # noqa: E731
simple(
    "scatter_add", lambda x, i, s: x.scatter_add(0, i, s), plain, lambda: indices(8192, 64), plain
)
simple("index_add", lambda x, i, s: x.index_add(0, i, s), plain, lambda: indices(8192), plain)
simple(
    "index_put, accumulating",
    lambda x, i, s: x.index_put((i,), s, accumulate=True),
    plain,
    lambda: indices(8192),
    plain,
)

# -- sorting

for count in (100, 8192, 65536, 1_000_000):
    simple(f"sort {count}", torch.sort, lambda count=count: made(count))
    simple(f"argsort {count}", torch.argsort, lambda count=count: indices(count))
    simple(f"cumsum {count}", lambda x: torch.cumsum(x, 0), lambda count=count: indices(count))
simple("sort of short rows", lambda x: torch.sort(x, -1), plain)
simple("sort of long rows", lambda x: torch.sort(x, -1), lambda: made(64, 8192))
simple("topk of rows", lambda x: torch.topk(x, 8, dim=-1), plain)

# -- layers

for width in (1024, 4096):
    for dtype in (FLOAT, HALF):
        x = lambda w=width, dtype=dtype: made(8192, w, dtype=dtype, grad=True)  # noqa: E731
        w = lambda w=width, dtype=dtype: made(w, dtype=dtype, grad=True)  # noqa: E731
        with_backward(
            f"layer_norm {width} {dtype}", lambda x, w, b: F.layer_norm(x, w.shape, w, b), x, w, w
        )
        with_backward(f"rms_norm {width} {dtype}", lambda x, w: F.rms_norm(x, w.shape, w), x, w)
for dtype in (FLOAT, HALF):
    with_backward(
        f"linear with bias {dtype}",
        F.linear,
        lambda dtype=dtype: made(8192, 1024, dtype=dtype, grad=True),
        lambda dtype=dtype: made(4096, 1024, dtype=dtype, grad=True),
        lambda dtype=dtype: made(4096, dtype=dtype, grad=True),
    )
with_backward(
    "cross_entropy", F.cross_entropy, lambda: made(8192, 50257, grad=True), lambda: indices(8192)
)


@case("linear, backward of an expanded gradient")
def _expanded() -> Callable[[], Any]:
    total = F.linear(made(8192, 1024, grad=True), made(4096, 1024, grad=True)).sum()
    return total.backward


with_backward("gelu", F.gelu, table)
with_backward("silu", F.silu, table)
with_backward("dropout", lambda x: F.dropout(x, 0.1), table)
with_backward("mse_loss", F.mse_loss, rows, plain)
with_backward(
    "bmm", torch.bmm, lambda: made(8, 512, 64, grad=True), lambda: made(8, 64, 512, grad=True)
)
with_backward("max_pool2d", lambda x: F.max_pool2d(x, 2), lambda: made(32, 64, 28, 28, grad=True))
with_backward(
    "group_norm",
    lambda x, w: F.group_norm(x, 8, w, w),
    lambda: made(32, 64, 28, 28, grad=True),
    lambda: made(64, grad=True),
)

# -- sums of gradients


def _residual(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x * 1
    return y + F.linear(F.layer_norm(y, (1024,)), w)


with_backward("residual", _residual, table, lambda: made(1024, 1024, grad=True))
with_backward("two uses", lambda x: (lambda y: y * 2 + y.sin())(x * 1), table)
with_backward("sum with itself", lambda x: (lambda y: y + y)(x * 1), table)
with_backward("views of one", lambda x: (lambda y: y.view(-1) + y.sin().view(-1))(x * 1), table)
