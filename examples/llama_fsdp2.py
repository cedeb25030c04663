"""A Llama-style model trained with FSDP2 (fully_shard), mixed precision and AdamW. Plain PyTorch, as one would write it.

memtracker trace --framework script --world 8 --out llama.mtrace -- examples/llama_fsdp2.py
memtracker trace --framework script --world 8 --gpu h100-80gb --out 8b.mtrace -- examples/llama_fsdp2.py --model 8b --checkpoint full
torchrun --nproc-per-node 8 examples/llama_fsdp2.py        # the same file on real GPUs
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


@dataclass(frozen=True)
class ModelSize:
    dim: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int


SIZES = {
    "debug": ModelSize(dim=256, layers=6, heads=16, kv_heads=4, hidden=768, vocabulary=2048),
    "1b": ModelSize(dim=2048, layers=16, heads=32, kv_heads=8, hidden=8192, vocabulary=128256),
    "8b": ModelSize(dim=4096, layers=32, heads=32, kv_heads=8, hidden=14336, vocabulary=128256),
}


def rotary_table(head_dim: int, length: int, theta: float = 500000.0) -> Tensor:
    frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * table[: x.shape[1], None, :]).flatten(-2).type_as(x)


class Attention(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.head_dim = size.dim // size.heads
        self.wq = nn.Linear(size.dim, size.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(size.dim, size.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(size.dim, size.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(size.heads * self.head_dim, size.dim, bias=False)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        queries, keys, values = (
            w(x).unflatten(-1, (-1, self.head_dim)) for w in (self.wq, self.wk, self.wv)
        )
        queries, keys = rotate(queries, table), rotate(keys, table)
        out = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        )
        return self.wo(out.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.w1 = nn.Linear(size.dim, size.hidden, bias=False)
        self.w2 = nn.Linear(size.hidden, size.dim, bias=False)
        self.w3 = nn.Linear(size.dim, size.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.dim, eps=1e-5)
        self.attention = Attention(size)
        self.feed_forward_norm = nn.RMSNorm(size.dim, eps=1e-5)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    table: Tensor

    def __init__(self, size: ModelSize, length: int) -> None:
        super().__init__()
        self.length = length
        self.head_dim = size.dim // size.heads
        self.embedding = nn.Embedding(size.vocabulary, size.dim)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.dim, eps=1e-5)
        self.output = nn.Linear(size.dim, size.vocabulary, bias=False)
        self.register_buffer("table", rotary_table(self.head_dim, length), persistent=False)

    def initialise(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(
                parameter
            )
        self.table = rotary_table(self.head_dim, self.length).to(self.table.device)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.table)
        return self.output(self.norm(x))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=SIZES, default="debug")
    parser.add_argument("--batch", type=int, default=1, help="sequences for each rank")
    parser.add_argument(
        "--sequence",
        type=int,
        default=None,
        help="tokens in a sequence (default: 2048, 8192 for 8b)",
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "--micro-batches",
        type=int,
        default=1,
        help="forwards and backwards for each optimizer step",
    )
    parser.add_argument(
        "--checkpoint", choices=["none", "full"], default="none", help="activation checkpointing"
    )
    arguments = parser.parse_args()
    size = SIZES[arguments.model]
    length = arguments.sequence or (8192 if arguments.model == "8b" else 2048)

    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)

    with torch.device("meta"):
        model = Llama(size, length)
    if arguments.checkpoint == "full":
        for index, layer in enumerate(model.layers):
            model.layers[index] = checkpoint_wrapper(layer)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=precision)
    fully_shard(model, mp_policy=precision)
    model.to_empty(device=device)
    model.initialise()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    for step in range(arguments.steps):
        for _ in range(arguments.micro_batches):
            tokens = torch.randint(0, size.vocabulary, (arguments.batch, length + 1)).to(device)
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            del logits
            (loss / arguments.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
