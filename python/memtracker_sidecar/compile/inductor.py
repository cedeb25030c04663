"""Inductor without a GPU: the generated wrapper runs, its kernels are never compiled or launched.

Inductor's wrapper is Python source that allocates with `empty_strided_cuda`, calls kernels, and drops buffers. Three of
its imports bypass the dispatcher in C++ and would make real tensors or refuse fake ones; they are replaced by the same
functions in Python. Kernels come from `AsyncCompile`, which returns an object that launches nothing. Questions about the
device are answered by the pretended GPU, so that Inductor's heuristics choose what they would choose on it.
What the first launch of a kernel allocates to choose between configurations is in `first_launch`.

Not modelled: candidates of whole operators (max-autotune), and scratch memory that Triton itself asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memtracker_sidecar.compile.first_launch import TritonKernel
from memtracker_sidecar.compile.silent_kernel import SilentKernel
from memtracker_sidecar.replacements import Replacements


def _empty_strided_cuda(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _empty_strided_cpu(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


def _reinterpret_tensor(
    tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0
) -> torch.Tensor:
    # torch/csrc/inductor/inductor_ops.cpp, _reinterpret_tensor: the offset is relative to the tensor's own.
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _replace_memory_functions(replacements: Replacements) -> None:
    guards = torch._C._dynamo.guards
    replacements.set_existing(
        guards,
        {
            "_empty_strided_cuda": _empty_strided_cuda,
            "_empty_strided_cpu": _empty_strided_cpu,
            "_empty_strided_cpu_pinned": _empty_strided_cpu,
            "_reinterpret_tensor": _reinterpret_tensor,
        },
        "allocates below the dispatcher",
    )
    replacements.set_existing(
        guards,
        {
            "assert_size_stride": lambda *_: None,
            "assert_size_stride_grouped": lambda *_: None,
            "assert_alignment": lambda *_: None,
            "copy_if_misaligned": lambda tensor: tensor,
            "copy_misaligned": lambda tensor: tensor,
        },
        "reads addresses, which fake tensors do not have",
    )


def _replace_kernels(replacements: Replacements, uncovered: Callable[..., None]) -> None:
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime import triton_helpers

    def flush_bytes() -> int:
        return int(torch.cuda.get_device_properties().L2_cache_size)

    def triton(
        self: Any, kernel_name: str, source_code: str, device_str: str = "cuda"
    ) -> TritonKernel | SilentKernel:
        del self
        if device_str != "cuda":
            return SilentKernel(kernel_name)
        return TritonKernel(kernel_name, source_code, uncovered, flush_bytes)

    def multi_kernel(self: Any, *arguments: Any, **_options: Any) -> SilentKernel:
        del self
        return SilentKernel(str(arguments[0]) if arguments else "multi_kernel")

    def unknown(language: str) -> Callable[..., SilentKernel]:
        def make(self: Any, *arguments: Any, **_options: Any) -> SilentKernel:
            del self
            uncovered(
                "kernel",
                f"Inductor {language} kernel",
                assumption="it allocates nothing besides what the wrapper allocates for it",
            )
            return SilentKernel(language)

        return make

    reason = "there is no GPU to compile a kernel for; the wrapper around it allocates all the same"
    replacements.set(AsyncCompile, "triton", triton, reason)
    replacements.set(
        triton_helpers, "set_driver_to_gpu", lambda: None, "asks the driver; kernels do not run"
    )
    replacements.set(AsyncCompile, "multi_kernel", multi_kernel, reason)
    replacements.set_existing(
        AsyncCompile,
        {
            name: unknown(name)
            for name in (
                "cuda",
                "cutlass",
                "cutedsl",
                "nv_universal_gemm",
                "pallas",
                "size_hint_multi_kernel",
            )
        },
        reason,
    )
    replacements.set(
        AsyncCompile,
        "wait",
        lambda self, scope: None,
        "nothing is compiled in the background",
    )
    replacements.set(
        AsyncCompile,
        "warm_pool",
        classmethod(lambda cls: None),
        "nothing is compiled in the background",
    )


def _replace_device_questions(replacements: Replacements) -> None:
    import torch._dynamo.device_interface as device_interface

    cuda = torch.cuda
    major, minor = cuda.get_device_capability()
    interface = device_interface.CudaInterface
    reason = "was bound to the real torch.cuda, or asks the driver"
    answers: dict[str, Any] = {
        "device": cuda.device,
        "Event": cuda.Event,
        "Stream": cuda.Stream,
        "current_device": staticmethod(cuda.current_device),
        "set_device": staticmethod(cuda.set_device),
        "device_count": staticmethod(cuda.device_count),
        "stream": staticmethod(cuda.stream),
        "current_stream": staticmethod(cuda.current_stream),
        "set_stream": staticmethod(cuda.set_stream),
        "synchronize": staticmethod(cuda.synchronize),
        "get_device_properties": staticmethod(cuda.get_device_properties),
        "get_raw_stream": staticmethod(lambda _device=0: cuda.current_stream().cuda_stream),
        "exchange_device": staticmethod(cuda._exchange_device),
        "maybe_exchange_device": staticmethod(cuda._maybe_exchange_device),
        "memory_allocated": staticmethod(cuda.memory_allocated),
        "is_bf16_supported": staticmethod(cuda.is_bf16_supported),
        "is_available": staticmethod(lambda: True),
        "get_compute_capability": staticmethod(lambda _device=None: major * 10 + minor),
        "is_triton_capable": staticmethod(lambda _device=None: True),
        "raise_if_triton_unavailable": staticmethod(lambda _device=None: None),
    }
    replacements.set_all(interface, answers, reason)
    replacements.set_all(
        interface.Worker,
        {
            "current_device": staticmethod(cuda.current_device),
            "set_device": staticmethod(cuda.set_device),
            "get_device_properties": staticmethod(cuda.get_device_properties),
        },
        reason,
    )
    replacements.set(
        torch._C,
        "_cuda_getCurrentRawStream",
        lambda _device=0: cuda.current_stream().cuda_stream,
        "asks the driver",
    )


def _replace_triton_questions(replacements: Replacements) -> None:
    import torch._inductor.compile_fx as compile_fx
    import torch._inductor.utils as inductor_utils
    import torch.utils._triton as triton_probes

    for owner in (triton_probes, inductor_utils, compile_fx):
        replacements.set_existing(
            owner,
            {name: lambda *_: True for name in ("has_triton", "has_triton_package")},
            "the pretended GPU has Triton",
        )
    absent = (
        "has_triton_tma",
        "has_triton_tma_device",
        "has_triton_experimental_host_tma",
        "has_triton_tensor_descriptor_host_tma",
        "has_datacenter_blackwell_tma_device",
        "has_triton_stable_tma_api",
    )
    replacements.set_existing(
        triton_probes,
        {name: lambda *_: False for name in absent},
        "descriptors are made by the driver; kernels do not run",
    )


def _set_options(replacements: Replacements) -> None:
    import torch._functorch.config as functorch_config
    import torch._inductor.config as inductor_config

    replacements.set(inductor_config, "compile_threads", 1, "nothing is compiled in the background")
    replacements.set(
        inductor_config,
        "force_disable_caches",
        True,
        "cached code would hold kernels of another run",
    )
    replacements.set(
        inductor_config,
        "fx_graph_cache",
        False,
        "cached code would hold kernels of another run",
    )
    replacements.set(
        functorch_config,
        "enable_autograd_cache",
        False,
        "cached code would hold kernels of another run",
    )
    replacements.set(
        inductor_config,
        "joint_graph_constant_folding",
        False,
        "computes constants on the GPU to look at their values",
    )


def install(replacements: Replacements, uncovered: Callable[..., None]) -> None:
    """Replaces everything in Inductor that would ask a GPU."""
    _replace_memory_functions(replacements)
    _replace_device_questions(replacements)
    _replace_triton_questions(replacements)
    _replace_kernels(replacements, uncovered)
    _set_options(replacements)
