"""The Megatron-LM adapter, without a checkout: what it makes of an argument line."""

from __future__ import annotations

import sys
from argparse import Namespace
from types import ModuleType
from typing import Any

import pytest
from conftest import REPOSITORY

from memtracker_sidecar.__main__ import load_adapter
from memtracker_sidecar.adapter_api import AdapterProblem, InterfaceChanged

NULL_TOKENIZER = "megatron.core.tokenizers.text.libraries.null_tokenizer"


def modules_of(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """An empty module under `path`, and the packages above it."""
    names = path.split(".")
    for end in range(1, len(names) + 1):
        name = ".".join(names[:end])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))


@pytest.fixture
def arguments() -> Any:
    load_adapter(REPOSITORY / "adapters" / "megatron")
    return sys.modules["memtracker_adapter_megatron.arguments"]


@pytest.mark.parametrize(
    # null_tokenizer.py, NullTokenizer.vocab_size: `_vocab_size_without_eod + 1` before c9dfe347 of 22 April 2026, `_vocab_size` since.
    ("counted", "own"),
    [(lambda told: told + 1, 1), (lambda told: told, 0)],
)
def test_the_null_tokenizer_is_told_of_as_many_entries_as_make_the_vocabulary(
    arguments: Any, monkeypatch: pytest.MonkeyPatch, counted: Any, own: int
) -> None:
    def tokenizer(told: int) -> Namespace:
        return Namespace(vocab_size=counted(told))

    modules_of(monkeypatch, NULL_TOKENIZER)
    sys.modules[NULL_TOKENIZER].NullTokenizer = tokenizer  # type: ignore[attr-defined]
    assert arguments.entries_of_null_tokenizer() == own


@pytest.mark.parametrize(
    ("kind", "extra_ids", "before_2026", "since"),
    [
        # tokenizer.py, _BertWordPieceTokenizer: [BOS], [EOS], --vocab-extra-ids. build_tokenizer.py: <extra_id_0> to <extra_id_99>.
        ("BertWordPieceCase", 100, 102, 100),
        ("BertWordPieceLowerCase", 0, 2, 0),
        ("GPT2BPETokenizer", 0, 0, 0),
    ],
)
def test_sentinels_are_entries_too(
    arguments: Any,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    extra_ids: int,
    before_2026: int,
    since: int,
) -> None:
    parsed = Namespace(vocab_extra_ids=extra_ids)
    assert arguments.added_to_file(kind, parsed) == since
    modules_of(monkeypatch, arguments.TOKENIZERS_OF_TRAINING)
    assert arguments.added_to_file(kind, parsed) == before_2026


def test_a_checkout_without_null_tokenizer_is_named(arguments: Any) -> None:
    with pytest.raises(InterfaceChanged, match=NULL_TOKENIZER):
        arguments.entries_of_null_tokenizer()


@pytest.mark.parametrize(
    # schedules.py, forward_backward_pipelining_with_interleaving: what is left of micro-batches divided by the group has to be 0,
    # or at least the number of stages.
    ("group", "micro_batches"),
    [(None, 16), (5, 15), (24, 48)],
)
def test_micro_batches_that_are_run_fill_their_groups(
    arguments: Any, traced: Any, group: int | None, micro_batches: int
) -> None:
    parsed = Namespace(
        micro_batch_size=2,
        global_batch_size=480,
        pipeline_model_parallel_size=4,
        tensor_model_parallel_size=1,
        context_parallel_size=1,
        microbatch_group_size_per_vp_stage=group,
    )
    arguments._limit_micro_batches(traced(world=8).context, parsed)
    assert parsed.global_batch_size == micro_batches * 2 * 2


@pytest.mark.parametrize("option", ["many", 0, -1.5])
def test_a_routing_factor_that_is_none_is_refused_with_what_to_write(
    arguments: Any, option: Any
) -> None:
    with pytest.raises(AdapterProblem, match=r"routing=1.25.*routing=worst"):
        sys.modules["memtracker_adapter_megatron.routing"]._factor(option)
