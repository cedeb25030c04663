"""User-written Triton kernels: a launch does nothing.

Outputs of a Triton kernel are tensors that the host code made before the launch, so they are recorded. An autotuner would run
every configuration to time it; here it takes the first, which is a legal one, and allocates nothing for timing. That is said: on a GPU
timing clears a buffer of its own between runs (triton/testing.py, do_bench; 256 MiB in backends/nvidia/driver.py,
get_empty_cache_for_benchmark), which stays in the allocator's cache.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from memtracker_sidecar.replacements import Replacements


def _name_of(kernel: Any) -> str:
    """A kernel's name, also through a heuristic that is wrapped around it."""
    wrapped = getattr(kernel, "fn", None)
    return str(getattr(kernel, "__name__", None) or getattr(wrapped, "__name__", "kernel"))


def install(
    replacements: Replacements, capability: tuple[int, int], uncovered: Callable[..., None]
) -> bool:
    """Replaces launching. Returns whether Triton is installed (a CPU build of PyTorch comes without)."""
    try:
        import triton
        import triton.runtime.jit as jit
        from triton.runtime.autotuner import Autotuner, Heuristics
    except ImportError:
        return False

    def launch(kernel: Any, *_arguments: Any, **_options: Any) -> None:
        name = _name_of(kernel)
        uncovered(
            "kernel",
            f"triton {name}",
            assumption="the kernel allocates nothing itself; its outputs are recorded where the host makes them",
            once_for=name,
            bytes=0,
        )

    def tuned(kernel: Any, *arguments: Any, **options: Any) -> Any:
        configs = getattr(kernel, "configs", None)
        if configs:
            kernel.best_config = configs[0]
            if len(configs) > 1:
                uncovered(
                    "kernel",
                    "triton autotuning",
                    detail=f"{len(configs)} configurations of {_name_of(kernel.fn)} would be timed",
                    assumption="the first configuration is taken, and what timing allocates is not counted",
                    once_for="triton autotuning",
                )
        return launch(kernel.fn, *arguments, **options)

    reason = "there is no GPU to launch on, and nothing to compute"
    replacements.set(jit.JITFunction, "run", launch, reason)
    replacements.set(Autotuner, "run", tuned, reason)
    replacements.set(
        Heuristics, "run", lambda kernel, *arguments, **options: launch(kernel.fn), reason
    )
    target = types.SimpleNamespace(
        backend="cuda", arch=capability[0] * 10 + capability[1], warp_size=32
    )
    torch_cuda = sys.modules["torch.cuda"]
    driver = types.SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=torch_cuda.current_device,
        set_current_device=lambda _device: None,
        get_current_stream=lambda _device=0: torch_cuda.current_stream().stream_id,
        get_device_capability=lambda _device=0: capability,
        get_active_torch_device=lambda: sys.modules["torch"].device(
            "cuda", torch_cuda.current_device()
        ),
        get_device_interface=lambda: torch_cuda,
        get_benchmarker=lambda: lambda call, *_arguments, **_options: 1.0,
        get_empty_cache_for_benchmark=lambda: None,
        clear_cache=lambda _cache: None,
        utils=types.SimpleNamespace(
            get_device_properties=lambda _device=0: {
                "max_shared_mem": torch_cuda.get_device_properties().shared_memory_per_block_optin,
                "multiprocessor_count": torch_cuda.get_device_properties().multi_processor_count,
                "max_num_regs": 65536,
                "warpSize": 32,
                # Clocks (kHz) and bus (bits) of an H100 SXM, for run time estimates only: 2 x 2.619 GHz x 5120 bit = 3.35 TB/s.
                "sm_clock_rate": 1_980_000,
                "mem_clock_rate": 2_619_000,
                "mem_bus_width": 5120,
            }
        ),
    )
    active = triton.runtime.driver
    active = getattr(active, "driver", active)
    try:
        replacements.set(active, "_active", driver, "Triton asks its driver for the target")
        replacements.set(active, "_default", driver, "Triton asks its driver for the target")
    except AttributeError:
        return True
    return True
