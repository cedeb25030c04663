"""A small training script, captured and traced by capture.test.ts. `oom` or `error` as argument end it in that way."""

import sys

import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    for _ in range(2):
        batch = torch.randn(256, 1024, device="cuda")
        model(batch).square().mean().backward()
    if step == 1 and "oom" in sys.argv:
        torch.empty(1 << 40, device="cuda")
    if step == 1 and "error" in sys.argv:
        raise ValueError("bad batch")
    optimizer.step()
    optimizer.zero_grad()
