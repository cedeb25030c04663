"""A process group of any world and rank, without the other ranks.

The groups are PyTorch's own `fake` backend, whatever backend the job asks for; each one that this rank belongs to is reported as
a communicator. Object collectives are answered as if every rank sent what this rank sends. Mesh arithmetic and DTensor's
sharding propagation are kept off the ledger. Collectives on tensors are in `collectives.py`.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from memtracker_sidecar import protocol
from memtracker_sidecar.collectives import Collectives, PendingWork
from memtracker_sidecar.emitter import EventSink
from memtracker_sidecar.fake_cuda.device_guard import MAX_DEVICES
from memtracker_sidecar.rank_layout import RankLayout
from memtracker_sidecar.recorder import StorageRecorder
from memtracker_sidecar.replacements import Replacements
from memtracker_sidecar.tables import Tables


class FakeDistributed:
    """The pretended job of `world` ranks, seen from `rank`."""

    def __init__(
        self,
        sink: EventSink,
        tables: Tables,
        recorder: StorageRecorder,
        replacements: Replacements,
        *,
        world: int,
        rank: int,
        gpus_per_node: int,
    ) -> None:
        self._sink = sink
        self._tables = tables
        self._recorder = recorder
        self._replacements = replacements
        self.world = world
        self.rank = rank
        self.gpus_per_node = gpus_per_node
        self._communicators: dict[str, int] = {}
        self._backends: dict[str, str] = {}
        self._made = 0
        self._eager = False
        self.backend = "nccl"
        """Backend that the job asked for by default."""
        self.layout = RankLayout(sink, world)
        self.collectives = Collectives(sink, tables, recorder, self._communicator_of)

    def environment(self) -> dict[str, str]:
        """What a launcher (torchrun) sets for this rank."""
        # FakeGuardImpl has eight devices; the index of a rank's GPU on a larger node wraps around.
        local = str(self.rank % self.gpus_per_node % MAX_DEVICES)
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": str(min(self.world, self.gpus_per_node)),
            "GROUP_RANK": str(self.rank // self.gpus_per_node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "memtracker",
            "SLURM_PROCID": str(self.rank),
            "SLURM_LOCALID": local,
            "SLURM_NTASKS": str(self.world),
        }

    # -- installing

    def install(self) -> None:
        """Redirects torch.distributed."""
        import torch.distributed._functional_collectives as functional
        import torch.testing._internal.distributed.fake_pg as fake_pg  # registers the backend

        self.collectives.install()
        original_init = c10d.init_process_group
        original_new = c10d.new_group
        original_destroy = c10d.destroy_process_group
        original_batch = c10d.batch_isend_irecv

        def init_process_group(backend: Any = None, *_arguments: Any, **options: Any) -> None:
            self.backend = _nccl_name(backend)
            self._eager = options.get("device_id") is not None
            original_init("fake", rank=self.rank, world_size=self.world, store=fake_pg.FakeStore())
            self._describe(c10d._get_default_group(), self.backend, options, parent=0)

        def new_group(
            ranks: Any = None,
            timeout: Any = None,
            backend: Any = None,
            pg_options: Any = None,
            **options: Any,
        ) -> Any:
            kept = {
                name: options[name]
                for name in ("group_desc", "use_local_synchronization")
                if options.get(name)
            }
            group = original_new(ranks, backend="fake", **kept)
            # With a bound device PyTorch splits NCCL groups from the default one (distributed_c10d._get_split_source).
            parent = 1 if self._eager else 0
            self._describe(
                group, self.backend if backend is None else _nccl_name(backend), options, parent
            )
            return group

        def destroy_process_group(group: Any = None) -> None:
            gone = (
                list(self._communicators) if group is None else [getattr(group, "group_name", "")]
            )
            original_destroy(group)
            for name in gone:
                communicator = self._communicators.pop(name, None)
                if communicator is not None:
                    self._sink.emit(protocol.communicator_destroy(communicator))

        reason = "there are no other ranks; the fake backend stands for every backend"
        self._everywhere(c10d, "init_process_group", init_process_group, reason)
        self._everywhere(c10d, "new_group", new_group, reason)
        self._everywhere(c10d, "destroy_process_group", destroy_process_group, reason)

        def batch_isend_irecv(operations: Any) -> Any:
            with self.collectives.batch():
                return original_batch(operations)

        # A single send or receive has a communicator of its two ranks, a batch uses the group's (ProcessGroupNCCL::pointToPoint).
        self._everywhere(
            c10d, "batch_isend_irecv", batch_isend_irecv, "calls of a batch are reported as such"
        )
        self._replacements.set(
            dist, "get_backend", self.backend_of, "training code asks whether the backend is nccl"
        )

        def pickled(value: Any, group: Any, kind: str, ranks: int) -> None:
            self._small(kind, group, len(pickle.dumps(value)) * ranks if _picklable(value) else 0)

        def gather_all(
            objects: list[Any], value: Any, group: Any = None, *_: Any, **__: Any
        ) -> None:
            pickled(value, group, "all_gather", len(objects))
            objects[:] = [value] * len(objects)

        def gather(
            value: Any,
            objects: list[Any] | None = None,
            dst: Any = None,
            group: Any = None,
            *_: Any,
            **__: Any,
        ) -> None:
            pickled(value, group, "gather", 1)
            if objects:
                objects[:] = [value] * len(objects)

        def broadcast(
            objects: list[Any], src: Any = None, group: Any = None, *_: Any, **__: Any
        ) -> None:
            pickled(objects, group, "broadcast", 1)

        def scatter(
            output: list[Any],
            objects: list[Any] | None = None,
            src: Any = None,
            group: Any = None,
            *_: Any,
            **__: Any,
        ) -> None:
            if objects:
                output[0] = objects[min(self.rank, len(objects) - 1)]
            pickled(output, group, "scatter", 1)

        def barrier(group: Any = None, *_: Any, async_op: bool = False, **__: Any) -> Any:
            self._small("barrier", group, 4)
            return PendingWork(lambda: None, []) if async_op else None

        objects: dict[str, Any] = {
            "all_gather_object": gather_all,
            "gather_object": gather,
            "broadcast_object_list": broadcast,
            "scatter_object_list": scatter,
            "barrier": barrier,
            "monitored_barrier": barrier,
        }
        for name, value in objects.items():
            self._everywhere(
                c10d, name, value, "every rank of the pretended job sends what this rank sends"
            )
        self._replacements.set(
            c10d, "_set_pg_timeout", lambda *_, **__: None, "the fake backend has no time-outs"
        )

        self._keep_meshes_real()
        self._quiet_dtensor()

        trigger_wait = functional.AsyncCollectiveTensor.trigger_wait

        def trigger_wait_and_tell(result: Any) -> Any:
            if not torch.compiler.is_dynamo_compiling() and not result.completed:
                self.collectives.waited(result.elem)
            return trigger_wait(result)

        self._replacements.set(
            functional.AsyncCollectiveTensor,
            "trigger_wait",
            trigger_wait_and_tell,
            "a compiler waits for its inputs with all dispatch modes off",
        )

        original_tracing = functional._are_we_tracing

        def are_we_tracing() -> bool:
            if torch.compiler.is_compiling():
                return True
            mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
            if mode is None or mode is self._recorder.fake_mode:
                return (
                    functional.get_proxy_mode() is not None
                    if hasattr(functional, "get_proxy_mode")
                    else False
                )
            return original_tracing()

        self._replacements.set(
            functional,
            "_are_we_tracing",
            are_we_tracing,
            "takes our fake mode for a compiler's and then skips AsyncCollectiveTensor",
        )
        # torch 2.14's shape rule for this operator is empty_like (a copy); what really runs wraps the tensor that is there.
        wrap = getattr(torch.ops._c10d_functional, "_wrap_tensor_autograd", None)
        if wrap is not None:
            self._recorder.policies[wrap.default] = lambda func, args, kwargs: (
                functional.AsyncCollectiveTensor(args[0])
            )

    def _everywhere(self, module: Any, name: str, value: Any, reason: str) -> None:
        self._replacements.set_everywhere(module, name, value, reason)

    def _keep_meshes_real(self) -> None:
        """DeviceMesh computes ranks with nonzero() and tolist() on a small CPU tensor: it has to be a real one."""
        import torch.distributed.device_mesh as device_mesh
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        def real(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def outside_fake_mode(*arguments: Any, **options: Any) -> Any:
                if torch.compiler.is_compiling():
                    return function(*arguments, **options)
                with unset_fake_temporarily():
                    return function(*arguments, **options)

            return outside_fake_mode

        reason = "mesh arithmetic needs the values of a real CPU tensor"
        mesh = device_mesh.DeviceMesh
        for name, member in list(vars(mesh).items()):
            if isinstance(member, types.FunctionType):
                if name not in ("__hash__", "__eq__", "__enter__", "__exit__", "__repr__"):
                    self._replacements.set(mesh, name, real(member), reason)
            elif isinstance(member, staticmethod):
                self._replacements.set(mesh, name, staticmethod(real(member.__func__)), reason)
            elif isinstance(member, property) and name == "mesh" and member.fget is not None:
                self._replacements.set(mesh, name, property(real(member.fget)), reason)
        make = real(device_mesh.init_device_mesh)

        def init_device_mesh(*arguments: Any, **options: Any) -> Any:
            mesh = make(*arguments, **options)
            self.layout.mesh_made(mesh)
            return mesh

        self._everywhere(device_mesh, "init_device_mesh", init_device_mesh, reason)

    def _quiet_dtensor(self) -> None:
        """DTensor: no random number bookkeeping, and sharding propagation is not memory of the job."""
        import torch.distributed.tensor._random as random
        import torch.distributed.tensor._sharding_prop as propagation

        class NoRandomTracker(random.OffsetBasedRNGTracker):
            def __init__(self, *_: Any, **__: Any) -> None:
                self._device = torch.device("cuda", 0)
                self._device_handle = torch.cuda
                self._use_distribute_region = False
                self._states: dict[str, Any] = {}

            def _distribute_region(self, *_: Any, **__: Any) -> Any:
                return contextlib.nullcontext()

            def _manual_seed(self, parallel_seed: int) -> None:
                return

        reason = "synchronises generator states that nothing draws from"
        self._replacements.set(random, "OffsetBasedRNGTracker", NoRandomTracker, reason)
        self._replacements.set(random, "_rng_tracker", NoRandomTracker(), reason)

        def paused(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def unrecorded(*arguments: Any, **options: Any) -> Any:
                with self._recorder.paused():
                    return function(*arguments, **options)

            return unrecorded

        propagator = propagation.ShardingPropagator
        for name in ("_propagate_tensor_meta_non_cached", "propagate_op_sharding_non_cached"):
            if hasattr(propagator, name):
                self._replacements.set(
                    propagator,
                    name,
                    paused(getattr(propagator, name)),
                    "makes global-size tensors only to read their shapes",
                )

    # -- communicators

    def _describe(self, group: Any, backend: str, options: Any, parent: int) -> None:
        if not isinstance(group, dist.ProcessGroup) or group.group_name in self._communicators:
            return
        self._made += 1
        self._communicators[group.group_name] = self._made
        ranks = sorted(c10d.get_process_group_ranks(group))
        facts: dict[str, Any] = {
            "description": group.group_desc,
            "eager": self._eager or options.get("device_id") is not None,
        }
        self._sink.emit(
            protocol.communicator(self._made, group.group_name, backend, ranks, parent, facts)
        )
        self._backends[group.group_name] = backend
        self.layout.group_made(ranks)

    def _communicator_of(self, name: str) -> int:
        found = self._communicators.get(name)
        if found is None:  # made by code that reached below torch.distributed's functions
            group = c10d._resolve_process_group(cast(Any, name))
            self._describe(group, self.backend, {}, 0)
            found = self._communicators.get(name, 0)
        return found

    def backend_of(self, group: Any = None) -> str:
        """The backend that the job asked for."""
        group = group or c10d._get_default_group()
        return self._backends.get(group.group_name, self.backend)

    def _small(self, kind: str, group: Any, size: int) -> None:
        """A collective on a few bytes that only matters because the first one sets the communicator up."""
        group = group or c10d._get_default_group()
        if isinstance(group, dist.ProcessGroup) and "nccl" in self.backend_of(group):
            self.collectives.begin(kind, group.group_name, size, asynchronous=False)()

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """The default process group, for code that does not make it itself."""
        dist.init_process_group("nccl")
        try:
            yield
        finally:
            dist.destroy_process_group()


def _nccl_name(backend: Any) -> str:
    return str(backend).lower() if backend else "nccl"


def _picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
