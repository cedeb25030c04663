"""FlexAttention, which training code always compiles: `torch.compile(flex_attention)`.

The compiled kernel's inputs and outputs are those of the higher-order operator, which has autograd and fake implementations
of its own. So a compiled `flex_attention` calls that operator directly. `create_block_mask` is compiled too, because run
eagerly it would materialise the whole mask; here it makes the block structure only, of the size the compiled one has.
Any other function is given to torch.compile as it is.

While something traces a graph (make_fx, or AOTAutograd under torch.compile), PyTorch's own path runs: what the mask reads
becomes an input of the traced operator, as Inductor needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.nn.attention.flex_attention as flex

from memtracker_sidecar.replacements import Replacements

_eager_flex_attention = flex.flex_attention
_eager_create_block_mask = flex.create_block_mask


def _flex_attention(*arguments: Any, **options: Any) -> Any:
    """flex_attention as it behaves under a compiler: no warning, no materialised scores."""
    if torch.fx._symbolic_trace.is_fx_symbolic_tracing():
        return _eager_flex_attention(*arguments, **options)
    compiling, mark = torch.compiler.is_dynamo_compiling, torch._dynamo.mark_static
    torch.compiler.is_dynamo_compiling = lambda: True
    torch._dynamo.mark_static = lambda *_arguments, **_options: None
    try:
        return _eager_flex_attention(*arguments, **options)
    finally:
        torch.compiler.is_dynamo_compiling = compiling
        torch._dynamo.mark_static = mark


def _create_block_mask(
    mask_mod: Any,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = 128,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    *_arguments: Any,
    **_options: Any,
) -> Any:
    """A BlockMask with the tensors that create_block_mask makes: every block may be used."""
    device = "cuda" if device is None else device
    rows, columns = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else BLOCK_SIZE
    batch, heads = B or 1, H or 1
    queries, keys = -(-Q_LEN // rows), -(-KV_LEN // columns)

    def counts(blocks: int) -> torch.Tensor:
        return torch.empty(batch, heads, blocks, dtype=torch.int32, device=device)

    def indices(first: int, second: int) -> torch.Tensor:
        return torch.empty(batch, heads, first, second, dtype=torch.int32, device=device)

    full = separate_full_blocks
    return flex.BlockMask(
        seq_lengths=(Q_LEN, KV_LEN),
        kv_num_blocks=counts(queries),
        kv_indices=indices(queries, keys),
        full_kv_num_blocks=counts(queries) if full else None,
        full_kv_indices=indices(queries, keys) if full else None,
        q_num_blocks=counts(keys),
        q_indices=indices(keys, queries),
        full_q_num_blocks=counts(keys) if full else None,
        full_q_indices=indices(keys, queries) if full else None,
        BLOCK_SIZE=(rows, columns),
        mask_mod=mask_mod,
    )


def install(replacements: Replacements, uncovered: Callable[..., None]) -> None:
    """Replaces torch.compile for the two functions."""
    compile_ = torch.compile

    def stand_in(function: Any) -> Any:
        inner = function.func if isinstance(function, functools.partial) else function
        if inner is _eager_flex_attention:
            uncovered(
                "kernel",
                "flex_attention",
                assumption="the compiled kernel allocates what the higher-order operator returns; its scratch is not counted",
                once_for="flex_attention",
            )
            made: Any = _flex_attention
        elif inner is _eager_create_block_mask:
            made = _create_block_mask
        else:
            return None
        return (
            functools.partial(made, *function.args, **function.keywords)
            if inner is not function
            else made
        )

    def compiled(model: Any = None, *arguments: Any, **options: Any) -> Any:
        if model is None:
            decorate = compile_(None, *arguments, **options)
            return lambda function: stand_in(function) or decorate(function)
        return stand_in(model) or compile_(model, *arguments, **options)

    reason = "a compiled flex_attention becomes the operator that its kernel implements"
    replacements.set(torch, "compile", compiled, reason)
