"""The Python half of the interactive bridge: one scenario that a TypeScript program drives call by call.

The interpreter runs pythonia's loop on its main thread, and every call arrives there. So modes that are entered in one call
are still on in the next, and what a scenario does is recorded exactly as a training job is (`run.Run`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from memtracker_sidecar import protocol
from memtracker_sidecar.__main__ import check_torch
from memtracker_sidecar.emitter import Emitter
from memtracker_sidecar.parent_watch import end_with_parent
from memtracker_sidecar.worker_spec import parse_worker_spec


class BridgeSession:
    """An open scenario. Created once in an interpreter; `close` ends it."""

    def __init__(self, spec_json: str) -> None:
        """`spec_json`: a worker specification (worker_spec.py) as JSON.

        Raises:
            AdapterProblem: torch is not the version that the private hooks were checked on.
            SpecError: the specification is not one.
        """
        # Standard output belongs to the program that drives us.
        os.dup2(2, 1)
        # Ctrl-C goes to the whole foreground group; the driver decides what it means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        end_with_parent()
        self.torch_version = check_torch()
        spec = parse_worker_spec(json.loads(spec_json))
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._emitter = Emitter(spec.endpoint, spec.run, curve=spec.curve)
        from memtracker_sidecar.run import Run

        self._run = Run(spec, self._emitter, allow_fallback_kernels=False)
        os.environ.update(self._run.distributed.environment())
        self._emitter.emit(
            protocol.run(
                "versions", {"torch": self.torch_version, "python": sys.version.split()[0]}
            )
        )
        self._recording: contextlib.ExitStack | None = None

    # -- recording

    def enter(self) -> None:
        """Fake tensors and the recorder are on from here."""
        if self._recording is not None:
            raise RuntimeError("fake() is already open; scopes of fake tensors do not nest")
        self._recording = contextlib.ExitStack()
        self._recording.enter_context(self._run.recording())

    def leave(self) -> None:
        """Back to real tensors. What lives on stays on the ledger."""
        if self._recording is not None:
            recording, self._recording = self._recording, None
            recording.close()

    def phase_begin(self, name: str, labels: Mapping[str, Any]) -> int:
        return self._run.phases.begin(name, **dict(labels))

    def phase_end(self, phase: int) -> None:
        self._run.phases.end(phase)

    def register_model(self, model: Any, prefix: str = "") -> None:
        """Names the modules, parameters and buffers of a model."""
        self._run.modules.register(model, prefix)
        self._run.owners.sweep_model(model, prefix)

    def register_optimizer(self, optimizer: Any) -> None:
        self._run.owners.sweep_optimizer(optimizer)

    def collect(self) -> int:
        """Collects reference cycles; returns how many objects went."""
        return gc.collect()

    # -- memory outside PyTorch

    def external_alloc(
        self, identity: str, size: int, category: str, detail: Mapping[str, Any]
    ) -> None:
        device = self._run.devices.id_of(_current_device())
        self._emitter.emit(protocol.external_alloc(identity, device, category, size, dict(detail)))

    def external_free(self, identity: str) -> None:
        self._emitter.emit(protocol.external_free(identity))

    # -- the caching allocator

    def empty_cache(self) -> None:
        import torch

        torch.cuda.empty_cache()

    # -- collectives

    def init_process_group(self) -> None:
        """The pretended job's default group."""
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("nccl")

    def collective(self, kind: str, tensor: Any) -> Any:
        """PyTorch's functional collective `kind` on the default group. The result is asynchronous: `wait` completes it."""
        import torch.distributed as dist
        import torch.distributed._functional_collectives as functional

        group = dist.distributed_c10d._get_default_group()
        match kind:
            case "all_gather":
                return functional.all_gather_single(tensor, 0, group)
            case "reduce_scatter":
                return functional.reduce_scatter_single(tensor, "sum", 0, group)
            case "all_reduce":
                return functional.all_reduce(tensor, "sum", group)
            case "all_to_all":
                return functional.all_to_all_single(tensor, None, None, group)
        raise ValueError(
            f"unknown collective {kind!r}; there are all_gather, reduce_scatter, all_reduce, all_to_all"
        )

    def wait(self, tensor: Any) -> Any:
        """Completes an asynchronous collective."""
        import torch.distributed._functional_collectives as functional

        return functional.wait_tensor(tensor)

    # -- reporting

    def flush(self) -> int:
        """Sends everything recorded so far; returns how many events that is in all."""
        self._emitter.flush()
        return self._emitter.events

    def close(self) -> None:
        """Ends the recording and the stream."""
        self.leave()
        self._run.finish()
        self._emitter.close("done", self._run.counts())


def _current_device() -> Any:
    import torch

    return torch.device("cuda", torch.cuda.current_device())
