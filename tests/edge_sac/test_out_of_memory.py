"""Every form in which memory runs out is recognised by its own words, and nothing else is."""

from __future__ import annotations

import errno
import mmap
import re

import numpy as np
import pytest

from edge_sac.out_of_memory import words_of

RUNTIME = [
    pytest.param(
        "CUDA out of memory. Tried to allocate 38.00 MiB. GPU 0 has a total capacity of 4.00 GiB of which 0 bytes is "
        "free.",
        id="allocator",
    ),
    pytest.param(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        id="runtime",
    ),
    pytest.param(
        "CUDA error: out of memorySearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/", id="newer"
    ),
    pytest.param("CUDA driver error: out of memory", id="driver"),
    pytest.param("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", id="cublas"),
    pytest.param("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", id="cudnn 8"),
    pytest.param("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", id="cudnn 9"),
    pytest.param(
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`", id="cusolver"
    ),
    pytest.param(
        'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/opt/pytorch/pytorch/c10/cuda/CUDACachingAllocator.cpp":838, '
        "please report a bug to PyTorch. ",
        id="jetson's allocator",
    ),
    pytest.param("NvMapMemAllocInternalTagged: 1075072515 error 12", id="jetson's driver"),
    pytest.param("NvMapMemHandleAlloc: error 0", id="jetson's handles"),
    pytest.param(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)",
        id="torch on the CPU",
    ),
    pytest.param(
        "[enforce fail at alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried to allocate "
        "1981808640 bytes.",
        id="torch on the CPU, elsewhere",
    ),
    pytest.param("std::bad_alloc", id="C++"),
]


@pytest.mark.parametrize("message", RUNTIME)
def test_runtime_error_that_is_one_of_memory_is_told_by_its_first_line(message: str) -> None:
    assert words_of(RuntimeError(message)) == message.partition("\n")[0].strip()


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`",
        "CUDA error: operation not permitted when stream is capturing",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "mat1 and mat2 shapes cannot be multiplied (8x17 and 23x256)",
        "pin memory thread exited unexpectedly",
    ],
)
def test_other_failure_of_a_device_is_none_of_memory(message: str) -> None:
    assert words_of(RuntimeError(message)) == ""


def test_line_that_tells_is_found_below_others() -> None:
    error = RuntimeError("The following operation failed\nCUDA error: out of memory\nmore")
    assert words_of(error) == "CUDA error: out of memory"


def test_what_a_user_wrote_is_no_library_speaking() -> None:
    assert words_of(ValueError("unknown robot 'out of memory'")) == ""
    assert words_of(OSError(errno.ENOSPC, "No space left on device")) == ""


def test_class_of_torch_counts_whatever_it_says() -> None:
    torch = pytest.importorskip("torch")
    assert words_of(torch.OutOfMemoryError("Allocation on device")) == "Allocation on device"
    assert words_of(torch.cuda.OutOfMemoryError("")) == "OutOfMemoryError"


def test_real_failures_of_this_machine_are_recognised() -> None:
    torch = pytest.importorskip("torch")
    for words, take in (
        (r"^\[Errno 12\]", lambda: mmap.mmap(-1, 2**60)),
        (r"Unable to allocate .* PiB", lambda: np.zeros(10**15)),
        (r"DefaultCPUAllocator", lambda: torch.empty(10**15)),
        (r"^MemoryError$", lambda: bytearray(2**60)),
    ):
        with pytest.raises((MemoryError, OSError, RuntimeError)) as caught:
            take()
        assert re.search(words, words_of(caught.value)), caught.value


def test_onnx_runtimes_own_class_counts_though_it_is_no_runtime_error() -> None:
    words = "Failed to allocate memory for requested buffer of size 8388608"
    kind = type("RuntimeException", (Exception,), {"__module__": "onnxruntime.capi.onnxruntime_pybind11_state"})
    assert words_of(kind(f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : {words}")).endswith(words)


def test_cause_is_looked_at_and_a_circle_of_causes_ends() -> None:
    outer = ValueError("the update failed")
    outer.__cause__ = MemoryError("no room")
    assert words_of(outer) == "no room"
    outer.__cause__.__cause__ = outer
    assert words_of(outer) == "no room"
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert words_of(first) == ""
