"""An MLP and a convolution model, trained for a few steps with AdamW: the Python half of small_models.ts.

On a machine with a GPU, `python small_models.py --model mlp --checkpoint` runs the same steps for real and prints what
torch.cuda measured, in bytes.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    """A block whose activations are recomputed in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = checkpoint(self.block, x, use_reentrant=False)
        return output


def build(model: str, recompute: bool, device: str) -> tuple[nn.Module, torch.Tensor]:
    """The model and one batch of inputs."""
    blocks: list[nn.Module]
    if model == "mlp":
        blocks = [
            nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(4)
        ]
        shape = (4096, 2048)
    elif model == "conv":
        blocks = [
            nn.Sequential(nn.Conv2d(64, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 64, 1))
            for _ in range(4)
        ]
        shape = (16, 64, 64, 64)
    else:
        raise ValueError(f"unknown model {model!r}; there are mlp and conv")
    if recompute:
        blocks = [Checkpointed(block) for block in blocks]
    return nn.Sequential(*blocks).to(device), torch.randn(shape, device=device)


def train(model: str, recompute: bool, steps: int, device: str = "cuda") -> None:
    """Runs optimizer steps; everything is gone when it returns."""
    network, batch = build(model, recompute, device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(steps):
        loss = network(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["mlp", "conv"], default="mlp")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    train(arguments.model, arguments.checkpoint, arguments.steps)
    print(
        json.dumps(
            {
                "requested": torch.cuda.memory_stats()["requested_bytes.all.peak"],
                "allocated": torch.cuda.max_memory_allocated(),
                "reserved": torch.cuda.max_memory_reserved(),
            }
        )
    )


if __name__ == "__main__":
    main()
