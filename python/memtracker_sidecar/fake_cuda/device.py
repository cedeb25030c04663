"""The pretended GPU: how many there are, which one is current, and what it says about itself."""

from __future__ import annotations

import contextlib
import types
from typing import Any

import torch

from memtracker_sidecar.fake_cuda import device_guard
from memtracker_sidecar.fake_cuda.streams import current_device, device_index_of, switch_device
from memtracker_sidecar.replacements import Replacements
from memtracker_sidecar.worker_spec import GpuProperties

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": resident threads and shared memory
# (per multiprocessor, opt-in per block) by capability. Kernels of the framework pick tile sizes from them.
_LIMITS: dict[tuple[int, int], tuple[int, int, int]] = {
    (7, 0): (2048, 96 * 1024, 96 * 1024),
    (7, 5): (1024, 64 * 1024, 64 * 1024),
    (8, 0): (2048, 164 * 1024, 163 * 1024),
    (8, 6): (1536, 100 * 1024, 99 * 1024),
    (8, 9): (1536, 100 * 1024, 99 * 1024),
    (9, 0): (2048, 228 * 1024, 227 * 1024),
    (10, 0): (2048, 228 * 1024, 227 * 1024),
    (10, 3): (2048, 228 * 1024, 227 * 1024),
    (12, 0): (1536, 100 * 1024, 99 * 1024),
}


class DeviceProperties(types.SimpleNamespace):
    """Stands for torch.cuda.get_device_properties()."""


# Bytes of the L2 cache as the driver tells them (cudaDeviceProp.l2CacheSize): A100, H100, B200 (126.5 MiB).
_L2_CACHE = {(8, 0): 40 * 2**20, (9, 0): 50 * 2**20, (10, 0): 132_644_864}
# A GB200 has more multiprocessors than a B200, and more cache: its properties in MrHuff/fp4-fa4 (edde9bc),
# tests, test_cuda_hardware_identity_records_the_physical_training_device.
_L2_CACHE_OF_NAME = {"NVIDIA GB200": 129 * 2**20}


def threads_per_multiprocessor(capability: tuple[int, int]) -> int:
    """Resident threads of one multiprocessor; those of Hopper for a capability that is not in the table."""
    return _LIMITS.get(capability, _LIMITS[(9, 0)])[0]


def _l2_cache(gpu: GpuProperties) -> int:
    """Of the GPU's name, else of its capability; that of Hopper for a capability that is not in the table."""
    of_capability = _L2_CACHE.get(gpu.capability, _L2_CACHE[(9, 0)])
    return _L2_CACHE_OF_NAME.get(gpu.name, of_capability)


def device_properties(gpu: GpuProperties) -> DeviceProperties:
    threads, shared, shared_optin = _LIMITS.get(gpu.capability, _LIMITS[(9, 0)])
    return DeviceProperties(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.total_memory,
        multi_processor_count=gpu.multi_processor_count,
        warp_size=32,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=threads,
        max_threads_per_block=1024,
        shared_memory_per_block=48 * 1024,
        shared_memory_per_block_optin=shared_optin,
        shared_memory_per_multiprocessor=shared,
        L2_cache_size=_l2_cache(gpu),
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )


def set_device(device: Any) -> None:
    index = device_index_of(device)
    if index >= 0:
        switch_device(index)


class DeviceContext(contextlib.ContextDecorator):
    """`with torch.cuda.device(d)` and `torch.accelerator.device_index(d)`."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else device_index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        if self.idx >= 0:
            switch_device(self.idx)

    def __exit__(self, *_error: object) -> None:
        switch_device(self.prev_idx)


class DeviceOfContext(DeviceContext):
    """`with torch.cuda.device_of(tensor)`."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if getattr(obj, "is_cuda", False) else None)


def _exchange_device(index: int) -> int:
    before = current_device()
    if index >= 0:
        switch_device(index)
    return before


def install(replacements: Replacements, gpu: GpuProperties, device_count: int) -> None:
    """Replaces device questions in torch.cuda and torch.accelerator with the answers of `gpu`."""
    count = min(device_count, device_guard.MAX_DEVICES)
    properties = device_properties(gpu)
    nothing = lambda *_arguments, **_options: None  # noqa: E731
    architecture = f"sm_{gpu.capability[0]}{gpu.capability[1]}"
    surface: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,
        "_lazy_call": lambda call, **_options: call(),
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: count,
        "current_device": current_device,
        "set_device": set_device,
        "device": DeviceContext,
        "device_of": DeviceOfContext,
        "_DeviceGuard": DeviceContext,
        "_exchange_device": _exchange_device,
        "_maybe_exchange_device": _exchange_device,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_arch_list": lambda: [architecture],
        "is_bf16_supported": lambda *_arguments, **_options: gpu.capability >= (8, 0),
        "is_tf32_supported": lambda: gpu.capability >= (8, 0),
        "can_device_access_peer": lambda device, peer: True,
        "ipc_collect": nothing,
        "utilization": lambda device=None: 0,
        "temperature": lambda device=None: 0,
        "power_draw": lambda device=None: 0,
        "clock_rate": lambda device=None: 0,
        "cudart": lambda: types.SimpleNamespace(
            cudaProfilerStart=nothing,
            cudaProfilerStop=nothing,
            cudaDeviceSetLimit=nothing,
            cudaHostRegister=lambda *_: 0,
        ),
    }
    replacements.set_all(torch.cuda, surface, "there is no CUDA driver; the pretended GPU answers")
    replacements.set_existing(
        torch._C,
        {
            "_cuda_getDevice": current_device,
            "_cuda_setDevice": set_device,
            "_cuda_getDeviceCount": lambda: count,
            "_cuda_init": nothing,
            "_cuda_exchangeDevice": _exchange_device,
            "_cuda_maybeExchangeDevice": _exchange_device,
        },
        "libraries call these below torch.cuda",
    )
    replacements.set_existing(
        torch.accelerator,
        {
            "is_available": lambda: True,
            "device_count": lambda: count,
            "current_device_index": current_device,
            "current_device_idx": current_device,
            "set_device_index": set_device,
            "set_device_idx": set_device,
            "device_index": DeviceContext,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
        },
        "the accelerator is the pretended GPU",
    )
    replacements.set(torch._utils, "_get_available_device_type", lambda: "cuda", "asks the driver")
    nvtx = torch.cuda.nvtx
    replacements.set_existing(
        nvtx,
        {
            "range_push": nothing,
            "range_pop": nothing,
            "range_start": lambda *_: 0,
            "range_end": nothing,
            "mark": nothing,
        },
        "NVTX is not in a CPU build",
    )
