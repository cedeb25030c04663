"""Kernel libraries: what the stand-ins of compiled modules allocate, and what an unknown call does.

Expected figures are those of the libraries' documentation and of measured jobs, not of the tables under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from conftest import TracedRun

from memtracker_sidecar.kernels import apex, extension, flash_attention
from memtracker_sidecar.kernels.extension import DetachedHost, ExtensionModule
from memtracker_sidecar.kernels.transformer_engine import TABLE, extension_module

Start = Callable[..., TracedRun]


@pytest.fixture
def host() -> Iterator[DetachedHost]:
    found = DetachedHost()
    extension.attach(found)
    yield found
    extension.attach(DetachedHost())


def test_an_unknown_extension_call_answers_and_is_reported(host: DetachedHost) -> None:
    module = ExtensionModule("some_cuda_library")
    answer = module.fused_something(torch.empty(4, 8), 3, mode="fast")
    assert answer.shape == (4, 8)
    kind, name, detail, assumption, nbytes = host.reports[0]
    assert (kind, name, assumption, nbytes) == (
        "kernel",
        "some_cuda_library.fused_something",
        "",
        -1,
    )
    assert "float32[4, 8]" in detail and "mode='fast'" in detail


def test_special_names_of_a_module_are_not_kernels() -> None:
    with pytest.raises(AttributeError):
        ExtensionModule("some_cuda_library").__version__  # noqa: B018


def test_every_kernel_says_where_it_was_read() -> None:
    for table in (TABLE, apex.AMP_C, apex.LAYER_NORM, flash_attention.TABLE):
        assert table.functions.keys() == table.provenance.keys()
        for provenance in table.provenance.values():
            assert provenance.source.startswith(table.version)


def test_a_gemm_allocates_its_output_and_the_bias_gradient(
    traced: Start, host: DetachedHost
) -> None:
    run = traced()
    tex = extension_module()
    with run.recording():
        weight = torch.empty(1024, 512, dtype=torch.bfloat16, device="cuda")
        data = torch.empty(8, 64, 512, dtype=torch.bfloat16, device="cuda")
        workspace = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        before = len(run.trace.allocations(run.device))
        out, bias_grad, gelu, extra = tex.generic_gemm(
            weight, True, data, False, None, None, None, None, None, False, None, False, workspace, 32 << 20, False, False
        )  # fmt: skip
        assert out.shape == (8, 64, 1024)
        assert (bias_grad, gelu, extra) == (None, None, None)
        made = run.trace.allocations(run.device)[before:]
        assert [entry["bytes"] for entry in made] == [8 * 64 * 1024 * 2]


def test_the_operator_of_a_kernel_is_its_own_name(traced: Start, host: DetachedHost) -> None:
    run = traced()
    from memtracker_sidecar.kernels.recording import RecordingHost

    extension.attach(RecordingHost(run.context))
    with run.recording():
        extension_module().fused_rope_forward(
            torch.empty(4, 2, 8, 64, device="cuda"), torch.empty(4, device="cuda"), None
        )
    assert "transformer_engine_torch::fused_rope_forward" in {
        entry["op"] for entry in run.trace.allocations(run.device)
    }


def test_fused_attention_keeps_output_statistics_and_random_state(
    traced: Start, host: DetachedHost
) -> None:
    run = traced()
    tex = extension_module()
    with run.recording():
        q, k, v = (
            torch.empty(1024, 4, 8, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3)
        )
        lengths = torch.empty(5, dtype=torch.int32, device="cuda")
        layout = tex.NVTE_QKV_Layout.NVTE_SBHD_SBHD_SBHD
        form = tex.NVTE_QKV_Format.NVTE_SBHD
        out, stats, state = tex.fused_attn_fwd(
            1024, 1024, True, 0.125, 0.0, True, layout, form, form, tex.NVTE_Bias_Type.NVTE_NO_BIAS,
            tex.NVTE_Mask_Type.NVTE_CAUSAL_MASK, tex.NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX, [-1, 0], False, lengths, lengths,
            q, k, v, torch.bfloat16, None, None, None, None, None, None, None, None, None, 0, False, False,
        )  # fmt: skip
    assert out.shape == (1024, 4, 8, 64)
    # One fp32 log-sum-exp a row: [batch, heads, queries, 1], as cuDNN's documentation of its SDPA statistics says.
    assert stats.shape == (4, 8, 1024, 1) and stats.dtype is torch.float32
    assert state.shape == (2,) and state.dtype is torch.int64


@pytest.mark.parametrize("release", ["2.7", "2.10", "2.14"])
def test_fused_attention_of_earlier_releases(
    traced: Start, host: DetachedHost, release: str
) -> None:
    # Parameters as declared in transformer_engine/pytorch/csrc/extensions.h of v2.7, v2.10 and v2.14.
    run = traced()
    tex = extension_module()
    vanilla = [] if release == "2.7" else [tex.NVTE_Softmax_Type.NVTE_VANILLA_SOFTMAX]
    aligned = [False] if release == "2.14" else []
    with run.recording():
        q, k, v = (
            torch.empty(512, 2, 8, 64, dtype=torch.bfloat16, device="cuda") for _ in range(3)
        )
        lengths = torch.empty(3, dtype=torch.int32, device="cuda")
        kind = [
            tex.NVTE_QKV_Layout.NVTE_SBHD_SBHD_SBHD, tex.NVTE_Bias_Type.NVTE_NO_BIAS,
            tex.NVTE_Mask_Type.NVTE_CAUSAL_MASK, *vanilla, [-1, 0], *aligned,
        ]  # fmt: skip
        offset = [] if release == "2.7" else [None]
        last = [] if release == "2.7" else [False, False]
        out, stats, state = tex.fused_attn_fwd(
            512, 512, True, 0.125, 0.0, True, *kind, lengths, lengths, q, k, v, torch.bfloat16,
            None, None, None, None, None, None, None, *offset, None, 0, *last,
        )  # fmt: skip
        grads = tex.fused_attn_bwd(
            512, 512, 0.125, 0.0, True, *kind, True, lengths, lengths, q, k, v, out, out, torch.bfloat16,
            tex.DType.kBFloat16, [stats, state], None, None, None, None, None, *last[:1],
        )  # fmt: skip
    assert out.shape == (512, 2, 8, 64)
    assert [grad.shape for grad in grads[:3]] == [(512, 2, 8, 64)] * 3


def test_flash_attention_does_not_split_keys_when_the_device_is_full(
    traced: Start, host: DetachedHost
) -> None:
    # 32 x 32 rows of blocks fill 264 slots; a single head of one query block does not.
    assert flash_attention.splits(32 * 32, 264, 64) == 1
    assert flash_attention.splits(1, 264, 64) > 1


def test_flash_attention_backward_holds_an_fp32_accumulator_while_it_runs(
    traced: Start, host: DetachedHost
) -> None:
    run = traced()
    with run.recording():
        q, k, v = (
            torch.empty(2, 256, 4, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
            for _ in range(3)
        )
        out = flash_attention.flash_attn_func(q, k, v, causal=True)
        before = len(run.trace.allocations(run.device))
        out.sum().backward()
    made = [entry["bytes"] for entry in run.trace.allocations(run.device)[before:]]
    assert 2 * 256 * 4 * 64 * 4 in made


def test_fused_adam_keeps_two_fp32_moments_for_each_parameter(
    traced: Start, host: DetachedHost
) -> None:
    run = traced()
    with run.recording():
        parameter = torch.nn.Parameter(torch.empty(1000, device="cuda"))
        optimizer = apex.FusedAdam([parameter])
        parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        state = optimizer.state[parameter]
    assert {name: tensor.dtype for name, tensor in state.items()} == {
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float32,
    }
