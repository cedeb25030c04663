"""TorchTitan: which generation a checkout is, how it is started, and everything that is put on from outside.

One file a concern: `interface` (names that are held on to), `phases` (labels), `changes` (to the configuration),
`synthetic_data`, `vision_batches` (images), `flux` (its encoders and batches), `documents` (where
documents begin, for variable-length attention), `engine` (which trainer) and `graph_trainer`, `expert_routing`,
`stage_boundary` (pipeline shapes), `absent_packages`; and one a generation: `config_registry` (0.3 and after), `train_spec` (0.1, 0.2), `train_script` (2024).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from memtracker_sidecar.adapter_api import (
    Adapter as AdapterInterface,
)
from memtracker_sidecar.adapter_api import (
    AdapterContext,
    AdapterProblem,
    ArgumentsRefused,
    Detection,
    NotThisFramework,
    Plan,
)
from memtracker_sidecar.worker_spec import WorkerSpec

from . import (
    absent_packages,
    config_registry,
    documents,
    engine,
    expert_routing,
    graph_trainer,
    interface,
    phases,
    rank_agreement,
    rank_layout,
    stage_boundary,
    torch_versions,
    train_script,
    train_spec,
    vision_batches,
)
from .changes import Changes

PACKAGE_OF_MODULE = {"fla": "fla-core"}
"""What pip calls a module, where it is another name."""

GENERATIONS: tuple[ModuleType, ...] = (config_registry, train_spec, train_script)
"""Newest first: a later one may keep files of an earlier one."""


def generation_of(checkout: Path) -> ModuleType | None:
    """The generation whose marks are all there."""
    for generation in GENERATIONS:
        if all((checkout / mark).exists() for mark in generation.MARKS):
            return generation
    return None


def _version(checkout: Path) -> str:
    file = checkout / "assets" / "version.txt"
    if file.exists():
        return file.read_text(encoding="utf-8").strip()
    for metadata in sorted(checkout.glob("torchtitan-*.dist-info")):
        return metadata.name.removeprefix("torchtitan-").removesuffix(".dist-info")
    return ""


class Adapter(AdapterInterface):
    def __init__(self) -> None:
        self._generation: ModuleType | None = None
        self._job: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def detect(self, checkout: Path | None) -> Detection:
        if checkout is None:
            return Detection(False, "TorchTitan needs the folder of a checkout")
        generation = generation_of(checkout)
        if generation is None:
            marks = "; ".join(f"{each.NAME}: {', '.join(each.MARKS)}" for each in GENERATIONS)
            return Detection(
                False, f"{checkout} has the files of no TorchTitan generation ({marks})"
            )
        return Detection(
            True,
            f"{generation.MARKS[0]}: the {generation.NAME} generation",
            _version(checkout),
        )

    def plan(self, spec: WorkerSpec) -> Plan:
        checkout = spec.checkout
        generation = generation_of(checkout) if checkout is not None else None
        if checkout is None or generation is None:
            raise NotThisFramework(self.detect(checkout).reason)
        self._generation = generation
        return Plan(
            argv=engine.arguments_for(str(spec.options.get("engine", "")), spec.argv, checkout),
            # NGPU and LOG_RANK are what run_train.sh sets for the trainer's own use.
            environment={"NGPU": str(spec.world), "LOG_RANK": str(spec.rank)},
            python_path=(checkout,),
            facts={
                "generation": generation.NAME,
                "version": _version(checkout),
                "checkout": str(checkout),
            },
        )

    # -- hooks

    def install(self, context: AdapterContext) -> None:
        generation = self._generation
        checkout = context.spec.checkout
        assert generation is not None and checkout is not None, "plan() comes before install()"
        # Relative paths in configs and arguments are relative to the checkout, as its launch scripts start there.
        os.chdir(checkout)
        for package in absent_packages.stand_in_for_absent():
            context.log(
                f"package {package} is not installed; it only reads or writes, an empty stand-in is used"
            )
        _require_from(checkout, context)
        self._job = _parse(generation, list(context.plan.argv))
        lost = interface.require(
            generation.NAME,
            (
                *generation.NEEDS,
                *(span.need for span in (*generation.TRAINER_SPANS, *generation.SPANS)),
            ),
        )
        for need in lost:
            context.uncovered(
                "feature",
                f"{need.module}.{need.attribute}",
                detail="the checkout does not have it",
                assumption=f"without it the trace lacks: {need.purpose}",
            )
        self._edit(context, generation)
        self._hook(context, generation)

    def _edit(self, context: AdapterContext, generation: ModuleType) -> None:
        """Input and output off, synthetic data."""
        synthetic = context.option("data", "synthetic") == "synthetic"
        length = context.option("document_length", 0) or None
        vision = vision_batches.VisionLayout(
            vision_batches.parse_size(context.option("image", "512x512")),
            context.option("images", 1),
        )
        self._folder = tempfile.TemporaryDirectory(prefix="memtracker-torchtitan-")
        tokenizer_files = _has_tokenizer(self._job)
        assumed = None if tokenizer_files else generation.assumed_vocabulary(self._job)
        if assumed is not None:
            context.uncovered(
                "feature",
                "tokenizer",
                detail="the model takes its vocabulary from the tokenizer, whose files are not there",
                assumption=f"{assumed} entries, as Llama 3's has",
            )
        reads_images = vision_batches.processor_of(getattr(self._job.config, "dataloader", None))
        generation.edit(
            self._job,
            Changes(
                steps=context.spec.steps,
                folder=self._folder.name,
                synthetic=synthetic,
                document_length=length,
                tokenizer_files=tokenizer_files,
                vision=vision,
                replacements=context.replacements,
            ),
        )
        if synthetic and vision.images and reads_images is not None:
            vision_batches.install(context, vision)
            context.uncovered(
                "data_dependent",
                "images",
                detail=f"synthetic samples of {vision.images} image(s), {vision.image[0]}x{vision.image[1]} pixels",
                assumption="--option image and images",
            )
        if synthetic:
            documents.install(context.replacements, length or self._job.document_length())
            context.uncovered(
                "data_dependent",
                "document layout",
                detail=f"synthetic tokens; a document begins every {length or self._job.document_length()} tokens",
                assumption="documents as long as the context"
                if length is None
                else "--option document_length",
            )
        context.facts("config", generation.facts(self._job))

    def _hook(self, context: AdapterContext, generation: ModuleType) -> None:
        phases.install(context.phases, context.replacements, generation.SPANS)
        trainer = getattr(self._job, "trainer", None)
        if trainer is not None:
            phases.install_on_class(
                context.phases, context.replacements, trainer, generation.TRAINER_SPANS
            )
            _report_steps(context, trainer)
        else:
            train_script.mark_steps(context, self._job)
        torch_versions.restore(
            context,
            str(context.spec.options.get("torch", "")),
            old_checkout=generation is not config_registry,
        )
        rank_layout.install(context)
        rank_agreement.install(context.replacements)
        if engine.graph_model(context.plan.argv) is not None:
            graph_trainer.install(context)
        stage_boundary.install(context.replacements, self._job.boundary)
        routing = expert_routing.ExpertRouting(
            context.option("routing", 1.0),
            lambda name, detail, assumption: context.uncovered(
                "data_dependent", name, detail=detail, assumption=assumption
            ),
        )
        expert_routing.install(context.replacements, routing)

    # -- the run

    def run(self, context: AdapterContext) -> None:
        job = self._job
        try:
            with context.recording():
                trainer = job.build()
                parts = job.model_parts(trainer)
                for part in parts:
                    context.register_model(
                        part
                    )  # names of layers are unique over the parts of a pipeline
                if len(parts) == 1:
                    phases.span_forward(context.phases, parts[0])
                phases.span_loss(context.phases, context.replacements, trainer)
                try:
                    job.train(trainer)
                finally:
                    job.close(trainer)
        finally:
            if self._folder is not None:
                self._folder.cleanup()


def _require_from(checkout: Path, context: AdapterContext) -> None:
    """Makes sure that `import torchtitan` means this checkout and not an installed one."""
    package = context.require("torchtitan", why="everything")
    found = Path(next(iter(package.__path__))).resolve()
    if found != (checkout / "torchtitan").resolve():
        raise AdapterProblem(
            f"`import torchtitan` finds {found}, not the checkout {checkout}; remove the other one from PYTHONPATH"
        )


def _parse(generation: ModuleType, argv: list[str]) -> Any:
    """Parses the arguments with the checkout's own parser.

    Raises:
        ArgumentsRefused: with the parser's own words.
        AdapterProblem: a package that computes is not installed.
    """
    told = io.StringIO()
    before = sys.argv
    sys.argv = ["train.py", *argv]
    logging.disable(logging.WARNING)  # what is told is the parser's words alone
    try:
        with contextlib.redirect_stderr(told), contextlib.redirect_stdout(told):
            return generation.parse(argv)
    except SystemExit as error:
        raise ArgumentsRefused(
            told.getvalue().strip() or f"the parser ended with status {error.code}"
        ) from error
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "torchtitan":
            raise ArgumentsRefused(str(error)) from error
        raise _missing_package(error.name) from error
    except ImportError as error:
        missing = _package_behind(argv)
        if missing is not None:
            raise _missing_package(missing) from error
        raise ArgumentsRefused(f"ImportError: {error}") from error
    except (
        ValueError,
        AssertionError,
        FileNotFoundError,
        KeyError,
        TypeError,
    ) as error:
        raise ArgumentsRefused(f"{type(error).__name__}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
        sys.argv = before


def _missing_package(name: str) -> AdapterProblem:
    package = name.partition(".")[0]
    return AdapterProblem(
        f"this checkout needs the Python package `{name}`, which is not installed; install it with "
        f"`{sys.executable} -m pip install {PACKAGE_OF_MODULE.get(package, package)}`"
    )


def _package_behind(argv: list[str]) -> str | None:
    """ConfigManager tries several places for a module and hides why the right one failed; this asks it again."""
    for position, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        if name == "--module":
            module = value if equals else argv[position + 1] if position + 1 < len(argv) else ""
            for prefix in ("torchtitan.models", "torchtitan.experiments"):
                try:
                    importlib.import_module(f"{prefix}.{module}.config_registry")
                except ModuleNotFoundError as error:
                    if error.name is not None and not error.name.startswith("torchtitan"):
                        return error.name
                except ImportError:
                    continue
    return None


def _has_tokenizer(job: Any) -> bool:
    """Whether the tokenizer's files are there; they are large, gated downloads that a config check seldom has."""
    config = job.config
    model = getattr(config, "model", None)
    for holder, name in (
        (config, "hf_assets_path"),
        (model, "hf_assets_path"),
        (model, "tokenizer_path"),
    ):
        path = getattr(holder, name, None)
        if isinstance(path, str) and path:
            place = Path(path)
            return place.is_file() or (place / "tokenizer.json").is_file()
    return False


def _report_steps(context: AdapterContext, trainer: type[Any]) -> None:
    train_step = trainer.train_step

    def reported(self: Any, *arguments: Any, **keywords: Any) -> Any:
        result = train_step(self, *arguments, **keywords)
        context.steps_done += 1
        context.progress(f"step {context.steps_done} of {context.spec.steps}")
        return result

    context.replacements.set(trainer, "train_step", reported, "reports progress")
