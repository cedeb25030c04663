"""A decoder of eight layers with AdamW, for the recorder's benchmark: prints the processor seconds of every step
(all threads: the sender of events counts, other programs on the machine do not)."""

import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, -1)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def main() -> None:
    with torch.device("cuda"):
        model = nn.Sequential(
            nn.Embedding(32000, 1024),
            *[Block(1024, 16) for _ in range(8)],
            nn.Linear(1024, 32000),
        )
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(12):
        started = time.process_time()
        tokens = torch.zeros(2, 512, dtype=torch.int64, device="cuda")
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step seconds {time.process_time() - started:.6f}", flush=True)


if __name__ == "__main__":
    main()
