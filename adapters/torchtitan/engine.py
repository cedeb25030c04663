"""Which of the checkout's trainers runs a job: the eager one, or the graph trainer of its experiments.

The checkout chooses by name. `--module llama3 --config llama3_debugmodel` is the eager trainer;
`--module graph_trainer.llama3 --config graph_trainer_llama3_debugmodel` is the same job for the graph trainer
(torchtitan/experiments/graph_trainer/README.md, torchtitan/config/manager.py `_load_config_fn`). `--option engine=…` writes the
one or the other, so that a job can be compared with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from memtracker_sidecar.adapter_api import AdapterProblem

ENGINES = ("eager", "graph")
_FOLDER = Path("torchtitan", "experiments", "graph_trainer")
_MODULE = "graph_trainer."
_CONFIG = "graph_trainer_"


def graph_models(checkout: Path) -> tuple[str, ...]:
    """The models that the checkout's graph trainer has configurations for."""
    return tuple(
        sorted(path.parent.name for path in (checkout / _FOLDER).glob("*/config_registry.py"))
    )


def graph_model(arguments: Sequence[str]) -> str | None:
    """The model that an argument line gives to the graph trainer; None when it asks for the eager one."""
    for argument in arguments:
        module = argument.removeprefix("--module=")
        if module.startswith(_MODULE):
            return module.removeprefix(_MODULE)
    return None


def _with(prefix: str, name: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def _change(arguments: Sequence[str], option: str, change: Callable[[str], str]) -> tuple[str, ...]:
    """`arguments` with the value of `option` changed, in both of its spellings."""
    changed: list[str] = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option and equals:
            argument = f"{option}={change(value)}"
        elif position and arguments[position - 1] == option:
            argument = change(argument)
        changed.append(argument)
    return tuple(changed)


def arguments_for(engine: str, arguments: Sequence[str], checkout: Path) -> tuple[str, ...]:
    """The argument line that makes the checkout take `engine`; unchanged when it is "".

    Raises:
        AdapterProblem: no such engine, or the checkout has no graph trainer for the model.
    """
    if not engine:
        return tuple(arguments)
    if engine not in ENGINES:
        raise AdapterProblem(f"option engine is {engine!r}; it is one of {', '.join(ENGINES)}")
    if engine == "eager":
        changed = _change(arguments, "--module", lambda name: name.removeprefix(_MODULE))
        return _change(changed, "--config", lambda name: name.removeprefix(_CONFIG))
    changed = _change(arguments, "--module", lambda name: _with(_MODULE, name))
    model, models = graph_model(changed), graph_models(checkout)
    if model not in models:
        there = f"it has one for {', '.join(models)}" if models else "it has none"
        raise AdapterProblem(f"this checkout has no graph trainer for {model}: {there}")
    return _change(changed, "--config", lambda name: _with(_CONFIG, name))
