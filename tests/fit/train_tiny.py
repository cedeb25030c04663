"""A training job whose memory is stated: `--gib N` of activations, on top of a few MiB of model and state."""

import argparse
import os
import signal

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--gib", type=int, default=1)
parser.add_argument("--fail", action="store_true", help="raise an exception in the second step")
parser.add_argument(
    "--die", action="store_true", help="the process kills itself in the second step"
)
arguments = parser.parse_args()

model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
rows = arguments.gib * 2**30 // (4 * 1024)
for step in range(2):
    if arguments.fail and step == 1:
        raise RuntimeError("the data set is broken")
    if arguments.die and step == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    batch = torch.empty(rows, 1024, device="cuda")
    output = model(batch)
    # The output stands for its own gradient, so that nothing else of this size is made.
    output.backward(output.detach())
    optimizer.step()
    optimizer.zero_grad()
    del batch, output
