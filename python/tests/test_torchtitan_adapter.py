"""The parts of the TorchTitan adapter that need no checkout."""

from __future__ import annotations

import functools
import gc
import importlib
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as checkpoint
from conftest import REPOSITORY

from memtracker_sidecar import protocol
from memtracker_sidecar.__main__ import load_adapter
from memtracker_sidecar.adapter_api import AdapterProblem, InterfaceChanged
from memtracker_sidecar.replacements import Replacements

FOLDER = REPOSITORY / "adapters" / "torchtitan"


def part(name: str) -> ModuleType:
    load_adapter(FOLDER)
    return sys.modules[f"memtracker_adapter_torchtitan.{name}"]


def checkout_with(folder: Path, *files: str) -> Path:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


@pytest.mark.parametrize(
    ("files", "generation"),
    [
        (("torchtitan/trainer.py", "torchtitan/config/manager.py"), "config registry"),
        (("torchtitan/protocols/train_spec.py", "torchtitan/train.py"), "train spec"),
        (
            ("train.py", "torchtitan/parallelisms/__init__.py", "torchtitan/config_manager.py"),
            "train script",
        ),
    ],
)
def test_a_checkout_is_known_by_its_files(
    tmp_path: Path, files: tuple[str, ...], generation: str
) -> None:
    detection = load_adapter(FOLDER).detect(checkout_with(tmp_path, *files))
    assert detection.matches
    assert generation in detection.reason


def test_a_folder_without_these_files_is_refused_with_what_was_looked_for(tmp_path: Path) -> None:
    detection = load_adapter(FOLDER).detect(tmp_path)
    assert not detection.matches
    assert "torchtitan/trainer.py" in detection.reason


def test_everything_that_is_missing_of_an_interface_is_named_at_once() -> None:
    interface = part("interface")
    needs = (
        interface.Need("json", "loads", "is there"),
        interface.Need("json", "no_such_name", "labels steps"),
        interface.Need("json", "JSONDecoder.no_such_method", "labels micro-batches"),
        interface.Need("json", "optional_name", "would be nice", required=False),
    )
    with pytest.raises(InterfaceChanged) as caught:
        interface.require("train spec", needs)
    message = str(caught.value)
    assert "json.no_such_name (labels steps)" in message
    assert "json.JSONDecoder.no_such_method (labels micro-batches)" in message
    assert "loads" not in message
    assert [need.attribute for need in interface.require("train spec", needs[::3])] == [
        "optional_name"
    ]


def test_rows_are_divided_in_equal_parts_with_the_remainder_first() -> None:
    assert part("expert_routing").equal_parts(10, 4) == [3, 3, 2, 2]


def test_split_sizes_are_read_only_inside_a_dispatch(traced: Any) -> None:
    routing_module = part("expert_routing")
    reports: list[str] = []
    routing = routing_module.ExpertRouting(1.5, lambda *report: reports.append(report[2]))
    replacements = Replacements()
    routing_module.install(replacements, routing)
    try:
        with traced().recording():
            counts = torch.zeros(4, dtype=torch.int64, device="cuda")
            assert counts.tolist() == [1, 1, 1, 1]  # no dispatch: the usual answer for a value
            with routing.dispatch(100):
                assert counts.tolist() == [25, 25, 25, 25]  # what this rank sends
                assert sum(counts.tolist()) == 150  # what it receives, 1.5 times as much
    finally:
        replacements.restore()
    assert "receives 1.5 times what it sends" in reports[0]


def test_synthetic_batches_have_the_shape_that_the_trainer_asked_for() -> None:
    data = part("synthetic_data")
    packed = data.SyntheticLoaderConfig().build(num_tokens_per_batch=8, max_context_length=4)
    inputs, labels = next(iter(packed))
    assert inputs["input"].shape == labels.shape == (8,)
    assert inputs["positions"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert {inputs["input"].dtype, labels.dtype} == {torch.int64}
    batched = data.SyntheticLoaderConfig(document_length=2).build(local_batch_size=2, seq_len=4)
    inputs, _ = next(iter(batched))
    assert inputs["positions"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 1]]
    with pytest.raises(TypeError, match="rows_per_batch"):
        data.SyntheticLoaderConfig().build(rows_per_batch=1)


def test_micro_batches_are_counted_anew_in_each_step() -> None:
    counter = part("phases").MicroBatchCounter()
    assert [counter.labels((), {})["micro_batch"] for _ in range(2)] == [0, 1]
    counter.restart()
    assert counter.labels((), {}) == {"micro_batch": 0}


def test_a_pipeline_action_names_its_stage_and_micro_batch() -> None:
    phases = part("phases")

    class Stage:
        stage_index = 3

    forward = phases.PIPELINE_SPANS[0]
    assert forward.labels((Stage(), 5, ()), {}) == {"stage": 3, "micro_batch": 5}
    assert forward.labels((Stage(),), {"fwd_chunk_id": 6}) == {"stage": 3, "micro_batch": 6}


def test_a_stand_in_can_be_imported_subclassed_and_annotated_with() -> None:
    absent = part("absent_packages").stand_in_for_absent(("no_such_io_package",))
    assert absent == ("no_such_io_package",)
    module = importlib.import_module("no_such_io_package.deep.module")

    class Reader(module.Base):  # type: ignore[misc,name-defined]
        options: module.Options | None = None

    assert Reader(1, two=2).anything().more() is not None
    assert part("absent_packages").stand_in_for_absent(("json",)) == ()
    # A library that looks whether the package is there is told the truth.
    probe = "import importlib.util; found = importlib.util.find_spec('no_such_io_package.other')"
    sys.modules.pop("no_such_io_package")
    namespace: dict[str, object] = {"__name__": "some_library"}
    with pytest.raises(ModuleNotFoundError):
        exec(compile(probe, "/site-packages/some_library/probe.py", "exec"), namespace)


def test_the_same_job_is_asked_of_the_other_trainer_by_its_names(tmp_path: Path) -> None:
    engine = part("engine")
    folder = checkout_with(
        tmp_path, "torchtitan/experiments/graph_trainer/llama3/config_registry.py"
    )
    # torchtitan/experiments/graph_trainer/README.md: the names of the graph trainer's modules and configurations.
    eager = ("--module", "llama3", "--config=llama3_8b", "--training.steps", "3")
    graph = (
        "--module",
        "graph_trainer.llama3",
        "--config=graph_trainer_llama3_8b",
        "--training.steps",
        "3",
    )
    assert engine.arguments_for("graph", eager, folder) == graph
    assert engine.arguments_for("graph", graph, folder) == graph
    assert engine.arguments_for("eager", graph, folder) == eager
    assert engine.arguments_for("", eager, folder) == eager
    assert engine.graph_model(graph) == "llama3"
    assert engine.graph_model(("--module=graph_trainer.llama3",)) == "llama3"
    assert engine.graph_model(eager) is None
    with pytest.raises(AdapterProblem, match="no graph trainer for flux: it has one for llama3"):
        engine.arguments_for("graph", ("--module", "flux"), folder)
    with pytest.raises(AdapterProblem, match="it has none"):
        engine.arguments_for("graph", ("--module=llama3",), tmp_path / "elsewhere")
    with pytest.raises(AdapterProblem, match="eager, graph"):
        engine.arguments_for("jit", eager, folder)


def test_what_a_model_reads_back_of_images_comes_from_the_layout() -> None:
    vision = part("vision_batches")
    layout = vision.VisionLayout((512, 512), 2, grids=[[1, 32, 32], [1, 16, 48]])
    grids = torch.zeros(2, 3, dtype=torch.int64)
    assert layout.read(grids) == [[1, 32, 32], [1, 16, 48]]
    assert layout.read(grids[:, 1:3]) == [[32, 32], [16, 48]]
    assert layout.read(grids[0]) is None
    assert layout.read(torch.zeros(3, 3, dtype=torch.int64)) is None
    mask = torch.tensor([True, True, False, True, False])
    assert vision._run_lengths(mask) == [2, 1]


def test_the_size_of_a_picture_is_height_and_width() -> None:
    vision = part("vision_batches")
    assert vision.parse_size("512x384") == (512, 384)
    for text in ("512", "x512", "0x512", "a lot"):
        with pytest.raises(AdapterProblem, match="512x512"):
            vision.parse_size(text)


@pytest.mark.parametrize(
    "names",
    [
        # torchtitan/config/configs.py of 2026, torchtitan/config/job_config.py of 0.2, torchtitan/config_manager.py of 2024
        ("dump_folder", "checkpoint.enable", "profiler.enable_profiling"),
        ("job.dump_folder", "checkpoint.enable_checkpoint", "profiling.enable_profiling"),
    ],
)
def test_a_configuration_is_changed_under_the_names_that_it_has(names: tuple[str, ...]) -> None:
    changes = part("changes")
    asked = changes.Changes(
        steps=3,
        folder="/written",
        synthetic=True,
        document_length=None,
        tokenizer_files=False,
        vision=part("vision_batches").VisionLayout((512, 512), 1),
        replacements=Replacements(),
    )

    def section(**fields: Any) -> SimpleNamespace:
        return SimpleNamespace(**fields)

    folder, saving, profiling = names
    config = section(
        training=section(steps=1000), checkpoint=section(), metrics=section(enable_wandb=True)
    )
    for name, value in ((folder, "outputs"), (saving, True), (profiling, True)):
        owner, _, field = name.rpartition(".")
        if owner and not hasattr(config, owner):
            setattr(config, owner, section())
        setattr(getattr(config, owner) if owner else config, field, value)
    changes.apply(config, asked)
    read = {name: operator.attrgetter(name)(config) for name in ("training.steps", *names)}
    assert read == {"training.steps": 3, folder: "/written", saving: False, profiling: False}
    assert config.metrics.enable_wandb is False
    assert not hasattr(config.metrics, "enable_tensorboard")
    del config.checkpoint
    with pytest.raises(InterfaceChanged, match="checkpoint.enable_checkpoint"):
        changes.apply(config, asked)


def test_a_job_with_a_trainer_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # v0.2.2: torchtitan/models/flux/run_train.sh starts torchtitan.models.flux.train, torchtitan/experiments/vlm has no train.py.
    checkout_with(tmp_path, "own_flux/__init__.py", "own_flux/train.py", "own_vlm/__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    refuse = part("train_spec").refuse_own_trainers

    def job(module: str) -> SimpleNamespace:
        return SimpleNamespace(job=SimpleNamespace(custom_config_module=module))

    refuse(job(""))
    refuse(job("own_vlm.job_config"))
    with pytest.raises(AdapterProblem, match="own_flux.train"):
        refuse(job("own_flux.job_config"))


def selective(block: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """`block` under a selective checkpoint that saves its matrix products."""
    contexts = functools.partial(
        checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]
    )
    result = checkpoint.checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize(("version", "kept"), [("", 0), ("2.8.dev", 64 * 64 * 4)])
def test_nightlies_of_may_2025_kept_saved_activations_until_a_collection(
    traced: Any, version: str, kept: int
) -> None:
    # pytorch/pytorch#154642: only with selective checkpoints, and gone after a collection. The last saved product is the one that
    # early stopping of the recomputation leaves in the checkpoint's storage.
    run = traced()
    gc.collect()
    gc.disable()
    try:
        part("torch_versions").restore(run.context, version, old_checkout=False)
        with run.recording():
            weight = torch.randn(64, 64, device="cuda", requires_grad=True)
            x = torch.randn(64, 64, device="cuda", requires_grad=True)
            selective(lambda x: (x @ weight).relu() @ weight, x).sum().backward()
            weight.grad = x.grad = None
            held = torch.cuda.memory_allocated()
            gc.collect()
            assert held - torch.cuda.memory_allocated() == kept
    finally:
        gc.enable()
        run.context.replacements.restore()


# What a graph of two tensor-parallel layers (below) allocates, in order: the wrapper that PyTorch 2.6.0's own Inductor wrote for it.
# The products of the first layer are handed on to the second; today's Inductor makes them anew, with a smaller peak.
LAYERS_OF_2_6 = [524_288, 1_048_576, 524_288, 65_536, 524_288, 65_536]
PEAK_OF_2_6 = 524_288 + 1_048_576 + 524_288 + 65_536


@pytest.mark.parametrize("version", ["", "2.6"])
def test_inductor_of_2_6_keeps_buffers_to_hand_them_on(traced: Any, version: str) -> None:
    run = traced()
    from torch.distributed import _functional_collectives as collectives

    def two_layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            gathered = collectives.all_gather_tensor(x, 0, group)
            y = torch.relu(gathered @ weight)
            x = collectives.reduce_scatter_tensor(y @ weight.T, "sum", 0, group)
        return x

    try:
        part("torch_versions").restore(run.context, version, old_checkout=False)
        with run.recording(), torch.no_grad():
            torch.distributed.init_process_group("nccl")
            group = torch.distributed.group.WORLD
            inputs = [
                torch.empty(shape, device="cuda") for shape in ((64, 256), (256, 512), (256, 512))
            ]
            torch._dynamo.reset()
            compiled = torch.compile(two_layers)
            compiled(*inputs)
            before = torch.cuda.memory_allocated()
            count = len(run.trace.allocations(run.device))
            torch.cuda.reset_peak_memory_stats()
            compiled(*inputs)
            peak = torch.cuda.max_memory_allocated() - before
        sizes = [event["bytes"] for event in run.trace.allocations(run.device)[count:]]
        assert (sizes == LAYERS_OF_2_6) == (version == "2.6"), sizes
        assert (peak == PEAK_OF_2_6) if version else (peak < PEAK_OF_2_6)
    finally:
        run.context.replacements.restore()


@pytest.mark.parametrize(
    ("version", "rank", "outputs", "gradients"),
    # "2.6": what the same program printed on PyTorch 2.6.0 (4 micro-batches, after the second step).
    [("2.6", 0, 4, 0), ("2.6", 1, 4, 4), ("", 0, 0, 0), ("", 1, 4, 0)],
)
def test_pipeline_stages_of_2_6_keep_outputs_and_gradients_of_inputs(
    traced: Any, version: str, rank: int, outputs: int, gradients: int
) -> None:
    run = traced(world=2, rank=rank)
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    boundary = part("stage_boundary")
    try:
        boundary.install(run.context.replacements, lambda: boundary.Boundary.of((2, 8), "float32"))
        part("torch_versions").restore(run.context, version, old_checkout=False)
        with run.recording():
            torch.distributed.init_process_group("nccl")
            linear = torch.nn.Linear(8, 8, device="cuda")
            stage = PipelineStage(linear, rank, 2, torch.device("cuda"))
            schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
            whole = torch.empty(8, 8, device="cuda")
            for _ in range(2):
                schedule.step(**{"target": whole, "losses": []}) if rank else schedule.step(whole)
        assert len(stage.output_chunks) == outputs
        buffers = [info.buffer for infos in stage.args_recv_info.values() for info in infos]
        kept = [buffer for buffer in buffers if getattr(buffer, "grad", None) is not None]
        assert len(kept) == gradients
    finally:
        run.context.replacements.restore()


@pytest.mark.parametrize(("version", "kept"), [("2.6", 1), ("", 0)])
def test_a_stage_of_2_6_keeps_the_input_of_its_last_reduce_scatter(
    traced: Any, version: str, kept: int
) -> None:
    # torch/distributed/pipelining/stage.py of 2.6: post_backward() of each group, no _root_post_backward_final_callback() after it.
    run = traced(world=4)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    boundary = part("stage_boundary")
    try:
        boundary.install(run.context.replacements, lambda: boundary.Boundary.of((2, 8), "float32"))
        part("torch_versions").restore(run.context, version, old_checkout=False)
        with run.recording():
            torch.distributed.init_process_group("nccl")
            mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "dp"))
            model = torch.nn.Sequential(*(torch.nn.Linear(8, 8, device="cuda") for _ in range(2)))
            for module in (*model, model):
                fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
            stage = PipelineStage(model, 0, 2, torch.device("cuda"), group=mesh["pp"].get_group())
            schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
            for _ in range(2):
                schedule.step(torch.empty(8, 8, device="cuda"))
        assert len(fully_shard.state(model)._comm_ctx.reduce_scatter_states) == kept
    finally:
        run.context.replacements.restore()


def test_what_fsdp_does_when_it_recomputes_is_not_counted_for_an_old_checkout(traced: Any) -> None:
    run = traced()
    calls: list[int] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) % 2 == 0:  # the recomputation
            with torch.autograd.profiler.record_function("FSDP::all_gather"):
                pass
        return (x @ x).relu() @ x

    def backward() -> None:
        with run.recording():
            selective(block, torch.randn(4, 4, device="cuda", requires_grad=True)).sum().backward()

    try:
        # pytorch/torchtitan#3427: the message of the pinned PyTorch.
        with pytest.raises(RuntimeError, match="not found in storage"):
            backward()
        part("torch_versions").restore(run.context, "", old_checkout=True)
        calls.clear()
        backward()
        assert len(calls) == 2
    finally:
        run.context.replacements.restore()


def test_a_traced_graph_says_which_module_and_pass_its_memory_belongs_to(traced: Any) -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    nodes = [
        ("w1", "layers.0.w1", {}),
        ("w2", "layers.0.w2", {}),
        ("w1_recomputed", "layers.0.w1", {"autograd_backward": True}),
        ("w2_backward", "layers.0.w2", {"autograd_backward": True}),
    ]
    value = x
    for name, module, meta in nodes:
        value = graph.create_node("call_function", torch.relu, (value,), name=name)
        value.meta.update(meta, custom={"module_fqn": module})
    value = graph.call_function(torch.relu, (value,))  # of no module of its own: of the one before
    graph.output(value)
    run = traced()
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    part("graph_trainer").label_modules(gm, place=run.context.modules.place)
    with run.recording():
        gm(torch.randn(4, device="cuda"))
        torch.randn(8, device="cuda")
    made = [(event["module"], event["step"]) for event in run.trace.allocations(run.device)]
    forward, backward = protocol.PASS_FORWARD, protocol.PASS_BACKWARD
    assert made[-6:] == [
        ("layers.0.w1", forward),
        ("layers.0.w2", forward),
        ("layers.0.w1", protocol.PASS_RECOMPUTE),
        ("layers.0.w2", backward),
        ("layers.0.w2", backward),
        ("", protocol.PASS_NONE),
    ]
    passes = [functools.partial(print), len]
    added = part("graph_trainer")._before_capture
    assert added(passes, repr) == [*passes, repr]

    def cudagraph_pass() -> None: ...

    captured = functools.partial(cudagraph_pass)
    assert added([len, captured], repr) == [len, repr, captured]


@pytest.mark.parametrize(
    # torchtitan/distributed/utils.py of 0.1 and 0.2, maybe_enable_amp: with pipeline or tensor parallelism and no FSDP,
    # "Mixed precision training is disabled".
    ("world", "dtype"),
    [(4, torch.float32), (8, torch.bfloat16)],
)
def test_stages_without_fsdp_exchange_float32_until_0_2(
    traced: Any, world: int, dtype: torch.dtype
) -> None:
    run = traced(world=world)
    boundary = part("stage_boundary")
    try:
        with run.recording():
            torch.distributed.init_process_group("nccl")
            stated = boundary.dtype_until_0_2("bfloat16", 4)
            assert boundary.Boundary.of((2, 8), stated).tensor().dtype is dtype
    finally:
        run.context.replacements.restore()
