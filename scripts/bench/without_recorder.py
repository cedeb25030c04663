"""Runs a script as a worker does, fake CUDA and FakeTensorMode included, but without the recorder and its trackers."""

import runpy
import sys

from torch._subclasses.fake_tensor import FakeTensorMode

from memtracker_sidecar import fake_cuda
from memtracker_sidecar.protocol import Event
from memtracker_sidecar.recorder import LiveBytes
from memtracker_sidecar.replacements import Replacements
from memtracker_sidecar.worker_spec import GpuProperties


class Nowhere:
    def emit(self, event: Event) -> None:
        pass


fake_cuda.install(
    Replacements(),
    GpuProperties("benchmark", (9, 0), 80 << 30, 132),
    device_count=1,
    current=0,
    sink=Nowhere(),
    counters=LiveBytes(),
)
with FakeTensorMode(allow_non_fake_inputs=True):
    runpy.run_path(sys.argv[1], run_name="__main__")
