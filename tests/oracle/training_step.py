"""Trains a GPT for a few steps in eager mode on the fake CUDA: real ATen code, the real allocator, no arithmetic.

    python training_step.py SNAPSHOT.pickle [--conf CONF] [--layers N] [--steps N]

bf16 autocast, flash attention, AdamW. Writes torch.cuda.memory._snapshot() with every allocation from the start, and prints
what the allocator says as JSON. Values read back from the device are zeros; cuDNN is not faked, so its attention is off.
"""

from __future__ import annotations

import argparse
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fake_cuda.preload import FakeDevices, Preload, start_again

if TYPE_CHECKING:
    from torch import Tensor

CAPACITY = 81_559 << 20  # of an H100


@dataclass(frozen=True)
class Shape:
    """Of the model and its input."""

    layers: int
    vocabulary: int = 50257
    width: int = 1024
    heads: int = 16
    sequence: int = 1024
    batch: int = 8


def train(shape: Shape, steps: int) -> None:
    """Builds the model on the device and trains it on zeros."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention_norm = nn.LayerNorm(shape.width)
            self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
            self.projection = nn.Linear(shape.width, shape.width, bias=False)
            self.mlp_norm = nn.LayerNorm(shape.width)
            self.up = nn.Linear(shape.width, 4 * shape.width)
            self.down = nn.Linear(4 * shape.width, shape.width)

        def forward(self, x: Tensor) -> Tensor:
            batch, sequence, width = x.shape
            qkv = self.qkv(self.attention_norm(x)).view(
                batch, sequence, 3, shape.heads, width // shape.heads
            )
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.projection(attended.transpose(1, 2).reshape(batch, sequence, width))
            return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(shape.vocabulary, shape.width)
            self.position = nn.Embedding(shape.sequence, shape.width)
            self.layers = nn.ModuleList(Layer() for _ in range(shape.layers))
            self.norm = nn.LayerNorm(shape.width)
            self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    torch.backends.cuda.enable_cudnn_sdp(False)
    with torch.device("cuda"):
        model = Gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(steps):
            ids = torch.zeros(shape.batch, shape.sequence, dtype=torch.long)
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(ids)
                loss = functional.cross_entropy(logits.view(-1, shape.vocabulary), ids.view(-1))
            del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description="Train a GPT on the fake CUDA.")
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--conf", default="")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    variables = FakeDevices(capacity=CAPACITY).environment()
    if arguments.conf:
        variables["PYTORCH_ALLOC_CONF"] = arguments.conf
    start_again(Preload(with_cublas=True), variables)
    import torch

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=1 << 30)
    train(Shape(layers=arguments.layers), arguments.steps)
    with arguments.snapshot.open("wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
    said = {
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "reserved": torch.cuda.memory_reserved(),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
